"""Synchronous data-parallel training on n ranks, simulated in one process.

All ranks hold the same parameters, so there is one model and one optimizer here; what differs from
rank to rank, the buffers, is swapped in for each rank's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from .exchange import SimulatedExchange
from .layout import cut_buckets, exchanged_parameters


class Local(NamedTuple):
    """One rank's part of one backward pass."""

    loss: Callable[[torch.nn.Module], torch.Tensor] | None
    samples: int
    weight: float | None = None

    @property
    def units(self) -> float:
        """What the loss is a mean over; a rank without samples has none."""
        if self.samples == 0:
            return 0
        return self.samples if self.weight is None else self.weight


Pass = Sequence[Local]  # one per rank
Gradients = list[np.ndarray | None]  # one per exchanged parameter, flat float32


class Wire:
    """What one rank has sent."""

    def __init__(self) -> None:
        self.bytes = 0
        self.messages = 0


class Scaler:
    """The rule of a dynamic loss scale: back off at an overflow, grow after some clean steps."""

    def __init__(self, scale: float, *, growth: float, backoff: float, interval: int) -> None:
        self.scale = scale
        self.growth, self.backoff, self.interval = growth, backoff, interval
        self._clean_steps = 0

    def update(self, *, clean: bool) -> None:
        """After a step."""
        self._clean_steps = self._clean_steps + 1 if clean else 0
        if not clean:
            self.scale *= self.backoff
        elif self._clean_steps == self.interval:
            self.scale *= self.growth
            self._clean_steps = 0


class Oracle:
    """What n ranks with `mpisgd.DataParallel(..., collective="stripes")` do, step by step.

    Attributes:
        wire: one `Wire` a rank.
        samples_seen: of all ranks.
        skipped: steps dropped for a value that was not finite.
        exchanges: one `SimulatedExchange` a bucket at `quant` bits.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        ranks: int,
        quant: int,
        warmup: int = 0,
        warmup_mode: str = "float32",
        column: int = 512,
        min_numel: int = 4096,
        bucket_mb: float | None = None,
        scaler: Scaler | None = None,
    ) -> None:
        self.model, self.optimizer, self.scaler = model, optimizer, scaler
        self.ranks, self.quant = ranks, quant
        self.warmup, self.replicate = warmup, warmup_mode == "replicate"
        self.parameters = exchanged_parameters(model, optimizer)
        self.exchanges, self._exact = (
            [
                SimulatedExchange(bucket, ranks=ranks)
                for bucket in cut_buckets(
                    [tuple(p.shape) for p in self.parameters],
                    coding=coding,
                    column=column,
                    min_numel=min_numel,
                    bucket_mb=bucket_mb,
                )
            ]
            for coding in (quant == 1, False)
        )
        self.wire = [Wire() for _ in range(ranks)]
        self.samples_seen = 0
        self.skipped = 0
        self._buffers = [self._copy_buffers() for _ in range(ranks)]
        self._was_replicating = self.replicating

    @property
    def coding(self) -> bool:
        """Whether the next step sends codes; one rank sends nothing."""
        return self.ranks > 1 and self.quant < 32 and self.samples_seen >= self.warmup

    @property
    def replicating(self) -> bool:
        """Whether every rank computes the next whole minibatch."""
        return self.replicate and self.samples_seen < self.warmup

    def step(
        self,
        passes: Sequence[Pass],
        *,
        before_update: Callable[[list[torch.nn.Parameter]], None] | None = None,
    ) -> bool:
        """Backward passes of all ranks and one update; returns whether the weights moved.

        `before_update`: what a user does between wait() and step(), such as clipping.
        """
        taking_part = range(1 if self.replicating else self.ranks)
        total = float(sum(one[rank].units for one in passes for rank in taking_part))
        samples = sum(one[rank].samples for one in passes for rank in taking_part)
        gradients = [self._gradients(rank, passes, total) for rank in taking_part]
        clean = total > 0
        if clean:
            means, clean = self._mean(gradients)
            self.skipped += not clean
            self._update(means, before_update, clean=clean)
        self.samples_seen += samples
        self._end_replication()
        return clean

    def _update(
        self,
        means: Gradients,
        before_update: Callable[[list[torch.nn.Parameter]], None] | None,
        *,
        clean: bool,
    ) -> None:
        if clean:
            self._set_gradients(means)
            if before_update is not None:
                before_update(self.parameters)
            self.optimizer.step()
        self.optimizer.zero_grad()
        if self.scaler is not None:
            self.scaler.update(clean=clean)

    def _gradients(self, rank: int, passes: Sequence[Pass], total: float) -> Gradients:
        """This rank's share of the mean: one pass weighs w/W, several sum up to weigh 1/W."""
        sums: Gradients = [None] * len(self.parameters)
        self._load_buffers(rank)
        for one in passes:
            if one[rank].samples == 0:
                continue
            for i, gradient in enumerate(self._backward(one[rank])):
                if gradient is None:
                    continue
                if len(passes) > 1:
                    gradient = gradient * np.float32(one[rank].units)
                    so_far = sums[i]
                    gradient = gradient if so_far is None else so_far + gradient
                sums[i] = gradient
        self._buffers[rank] = self._copy_buffers()
        weight = passes[0][rank].units if len(passes) == 1 else 1.0
        scale = 1.0 if self.scaler is None else self.scaler.scale
        factor = np.float32(weight / total / scale) if total > 0 else np.float32(0)
        return [None if g is None else g * factor for g in sums]

    def _backward(self, local: Local) -> Gradients:
        """Gradients of one mean loss, widened to float32."""
        assert local.loss is not None
        for parameter in self.parameters:
            parameter.grad = None
        loss = local.loss(self.model)
        (loss if self.scaler is None else loss * self.scaler.scale).backward()
        gradients = [
            None
            if p.grad is None
            else p.grad.to(torch.float32).contiguous().flatten().numpy().copy()
            for p in self.parameters
        ]
        for parameter in self.parameters:
            parameter.grad = None
        return gradients

    def _mean(self, gradients: list[Gradients]) -> tuple[Gradients, bool]:
        """Sum the shares: the mean, None where nobody had a gradient; and whether all is finite."""
        if len(gradients) == 1:  # one rank, or a replicated step: nothing travels
            (mean,) = gradients
            return mean, all(bool(np.isfinite(g).all()) for g in mean if g is not None)
        means: Gradients = [None] * len(self.parameters)
        exchanges = self.exchanges if self.coding else self._exact
        clean = True
        for exchange in exchanges:
            total, finite = exchange.sum([flatten(exchange, g) for g in gradients])
            clean &= finite
            for i in exchange.bucket.slots:
                if any(g[i] is not None for g in gradients):
                    means[i] = total[exchange.bucket.range_of(i)]
                else:
                    exchange.repay(i, total)
            self._count(exchange)
        if clean:
            for exchange in exchanges:
                exchange.commit()
        return means, clean

    def _count(self, exchange: SimulatedExchange) -> None:
        for rank, wire in enumerate(self.wire):
            wire.bytes += exchange.bucket.sent_bytes(rank, self.ranks)
            wire.messages += 2 * (self.ranks - 1)

    def _set_gradients(self, means: Gradients) -> None:
        """Round once to each parameter's dtype; the gradient has the parameter's strides."""
        for parameter, mean in zip(self.parameters, means, strict=True):
            if mean is None:
                parameter.grad = None
                continue
            parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(torch.from_numpy(mean.copy()).view(parameter.shape))

    def buffers_of(self, rank: int) -> list[torch.Tensor]:
        """Batch-norm statistics and the like, as they are on `rank`."""
        return self._buffers[rank]

    def _copy_buffers(self) -> list[torch.Tensor]:
        return [buffer.detach().clone() for buffer in self.model.buffers()]

    def _load_buffers(self, rank: int) -> None:
        for buffer, value in zip(self.model.buffers(), self._buffers[rank], strict=True):
            buffer.detach().copy_(value)

    def _end_replication(self) -> None:
        """At the switch rank 0's buffers go to all, as the parameters have already."""
        if self._was_replicating and not self.replicating:
            self._buffers = [[b.clone() for b in self._buffers[0]] for _ in range(self.ranks)]
        self._was_replicating = self.replicating


def flatten(exchange: SimulatedExchange, gradients: Gradients) -> np.ndarray:
    """A rank's buffer of one bucket; zeros where it has no gradient."""
    flat = np.zeros(exchange.bucket.size, np.float32)
    for i in exchange.bucket.slots:
        gradient = gradients[i]
        if gradient is not None:
            flat[exchange.bucket.range_of(i)] = gradient
    return flat
