"""Synchronous data-parallel SGD: every step applies the mean gradient over all ranks' samples.

Source: Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
Distributed Training of Speech DNNs", Interspeech 2014; CNTK
Source/1BitSGD/QuantizedDataParallelDistributedLearner.h. Shares of the mean are exchanged, not
sums: a residual then keeps its unit when the minibatch size changes (docs/arithmetic.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from mpisgd import ranges
from mpisgd.collectives.base import Call
from mpisgd.collectives.header import Flags
from mpisgd.exchange import check_bits, choose_collective, payload_bytes
from mpisgd.parameters import check_param_hash

from .base import AbstractLearner, check_keys
from .broadcast import broadcast_model, broadcast_optimizer
from .counting import Count, CountRequest
from .gradients import GradientExchange, cut_layouts
from .streams import RankStreams

if TYPE_CHECKING:
    from mpisgd.world import World

WARMUP_MODES = ("float32", "replicate")
_COUNTERS = ("samples_seen", "steps", "skipped_steps")


class DataParallel(AbstractLearner):
    """1-bit SGD, or 32-bit, or the one after the other (warm start).

    Cost per step and rank: that of the collective (`mpisgd.collectives`), and 16 control bytes
    unless `global_samples` is given to backward(); 40 more for the flags at 32 bits.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        world: World,
        quant: int = 32,
        warmup: int = 0,
        warmup_mode: str = "float32",
        collective: str = "auto",
        column: int = 512,
        min_numel: int = 4096,
        bucket_mb: float | None = None,
        overlap: bool | str = "auto",
        delay: int = 0,
        method: str = "sgd",
        scaler: Any | None = None,
        check_every: int = 0,
    ) -> None:
        """Take over the gradients of `optimizer`, and broadcast rank 0's state. Collective.

        Args:
            model: all ranks the same architecture.
            optimizer: any torch optimizer over (some of) its parameters.
            world: the ranks to train with; the learner makes its own communicator.
            quant: bits per gradient value.
            warmup: the first step that starts with samples_seen >= warmup is quantized.
            warmup_mode: "float32" (exchange 32 bits until then) or "replicate" (every rank computes
                the same whole minibatch until then, nothing is exchanged: see `shard`).
            collective: "auto" or a name of COLLECTIVES.
            column: values per column.
            min_numel: smaller tensors travel as fp32.
            bucket_mb: cut the exchange into buckets of at most so many MB; None: one.
            overlap: "auto" or False (this version exchanges when backward is done).
            delay: 0 (each gradient is applied in its own step).
            method: "sgd" (gradients are exchanged, whatever the optimizer).
            scaler: a torch.amp.GradScaler; the learner alone scales, steps and updates it.
            check_every: compare a hash of the parameters over all ranks every so many steps; 0:
                never.

        Raises:
            ValueError, TypeError: an option or a parameter that cannot be honoured, or one that
                is not the same on all ranks.
        """
        super().__init__(model, optimizer, world=world, scaler=scaler)
        _refuse_unbuilt(overlap=overlap, delay=delay, method=method)
        ranges.require("warmup", warmup, ranges.whole(0))
        ranges.require("check_every", check_every, ranges.whole(0))
        if warmup_mode not in WARMUP_MODES:
            raise ValueError(f"warmup_mode: got {warmup_mode!r}; must be one of {WARMUP_MODES}")
        self.quant, self.warmup, self.warmup_mode = quant, int(warmup), warmup_mode
        self.check_every = int(check_every)
        check_bits(quant)
        choose_collective(collective, quant)
        options: dict[str, Any] = {"column": column, "min_numel": min_numel, "bucket_mb": bucket_mb}
        self._layouts = {
            bits: cut_layouts(self.parameters, bits=bits, **options) for bits in (32, quant)
        }
        world.check_same("learner", self._fingerprint({**options, "collective": collective}))
        self.comm = world.dup()
        self._exchanges = self._prepare(collective)
        broadcast_model(model, world)
        broadcast_optimizer(optimizer, world)
        self._streams = RankStreams(world) if self._replicating else None
        self._replicas_checked = False
        self._request: CountRequest | None = None
        self._clean: bool | None = None  # verdict of wait(), until step() uses it
        self._count_of_step = Count(0, 0.0, 0)

    def _prepare(self, collective: str) -> dict[int, GradientExchange]:
        """The exchange at `quant` bits, and one at 32 bits for the warm start. Collective."""
        if self.world.size == 1:
            return {}
        exchanges: dict[int, GradientExchange] = {}
        warm = self.quant != 32 and self.warmup > 0 and self.warmup_mode == "float32"
        for bits in (self.quant, *([32] if warm else [])):
            exchanges[bits] = GradientExchange(
                self.parameters,
                self._layouts[bits],
                bits=bits,
                collective=collective,
                world=self.world,
                comm=self.comm,
                wire=self.wire,
                clock=self.clock,
                storages=exchanges[self.quant].storages if exchanges else None,
            )
        return exchanges

    def _fingerprint(self, options: dict[str, Any]) -> list[tuple[str, str]]:
        mine = {"quant": self.quant, "warmup": self.warmup, "warmup_mode": self.warmup_mode}
        items = {**mine, **options, "check_every": self.check_every}
        return [*((key, repr(value)) for key, value in items.items()), *self._state_items()]

    @property
    def quantizing(self) -> bool:
        """Whether the next step is quantized."""
        return self.quant < 32 and self.samples_seen >= self.warmup and self.world.size > 1

    @property
    def bits_on_wire(self) -> int:
        """See `AbstractLearner`."""
        return self.quant if self.quantizing else 32

    @property
    def _replicating(self) -> bool:
        return self.warmup_mode == "replicate" and self.samples_seen < self.warmup

    @property
    def shard(self) -> tuple[int, int]:
        """(rank, size); (0, 1) while a replicated warm start lasts."""
        return (0, 1) if self._replicating else (self.world.rank, self.world.size)

    def payload_bytes(self, bits: int) -> int:
        """Bytes of all gradients on the wire, once, at 32 bits or at `quant`; headers excluded."""
        if bits not in self._layouts:
            raise ValueError(
                f"payload_bytes: got {bits}; this learner knows {[*self._layouts]} bits"
            )
        return sum(payload_bytes(layout, bits) for layout in self._layouts[bits])

    @property
    def residuals(self) -> list[torch.Tensor]:
        """What this rank still owes, a flat float32 tensor per bucket (raw values owe nothing)."""
        return self._exchanges[self.quant].residuals if self._exchanges else []

    @property
    def _alone(self) -> bool:
        """Whether gradients are final as they are: one rank, or all ranks compute the same."""
        return self.world.size == 1 or self._replicating

    def _start_step(self) -> None:
        """Start to sum the counts over ranks, unless they are known."""
        if self._replicating and self.world.size > 1 and not self._replicas_checked:
            self._check_replicas()
        if not self._alone and self._global_samples is None:
            samples, weight = self._local_samples, self._local_weight
            self._request = CountRequest(self.comm, self.wire, samples=samples, weight=weight)

    def _totals(self) -> Count:
        """Global counts of the step in progress."""
        if self._request is not None:
            with self.clock.phase("wait"):
                return self._request.result()
        if self._alone or self._global_samples is None:
            return Count(self._local_samples, self._local_weight, 0)
        return Count(self._global_samples, float(self._global_samples), 0)

    def wait(self) -> bool:
        """Complete the exchange. Then p.grad holds the mean over all ranks' samples until step().

        The mean is unscaled, in the parameter's dtype, the same bits on all ranks, and None where
        no rank had a gradient. Returns False if the step will be skipped (a non-finite gradient on
        some rank, or no sample on any).

        Raises:
            RuntimeError: no backward() to wait for.
        """
        if self._clean is None:
            if not self._open:
                raise RuntimeError(
                    "wait: nothing to wait for; call backward() outside no_sync() first"
                )
            self._clean = self._complete(self._totals())
        return self._clean

    def _complete(self, count: Count) -> bool:
        """Make p.grad the mean over `count.weight` units; False if the step is to be skipped."""
        self._count_of_step = count
        if count.weight == 0:
            clean = False
        elif self._alone:
            clean = self._finish_alone()
        else:
            flags = self._exchanges[self.bits_on_wire].run(
                self._gradients(),
                self._share(count.weight),
                has_samples=self._local_samples > 0,
                call=Call(self.steps + self.skipped_steps, self.samples_seen + count.samples),
            )
            clean = not flags & Flags.NONFINITE
        if not clean:
            self._drop_gradients()
        return clean

    def step(self) -> bool:
        """wait(), apply the mean unless the step is skipped, and drop the gradients.

        Returns True if the weights moved. samples_seen advances in both cases.
        """
        clean = self.wait()
        count = self._count_of_step
        replicated = self._replicating
        if count.weight == 0:
            self._reset_step()
        else:
            self._apply(clean)
        self._clean, self._request = None, None
        self.samples_seen += count.samples
        if replicated and not self._replicating:
            self._leave_replication()
        if self.check_every and clean and self.steps % self.check_every == 0:
            check_param_hash(self.model, self.world)
        return clean

    def _check_replicas(self) -> None:
        """Raise ValueError on all ranks unless all computed the first minibatch. Collective."""
        table = np.zeros((self.world.size, 2))
        loss = np.nan if self._last_loss is None else float(self._last_loss)
        table[self.world.rank] = self._local_samples, loss
        samples, losses = self.world.sum(table).T
        # Replicas may round differently, but they see the same samples.
        if (samples != samples[0]).any() or not np.allclose(
            losses, losses[0], rtol=1e-2, equal_nan=True
        ):
            seen = ", ".join(
                f"{n:.0f} of loss {x:.6g}" for n, x in zip(samples, losses, strict=True)
            )
            raise ValueError(
                f"replicated warm start: the ranks have samples {seen}; every rank must compute the"
                " same whole minibatch until the switch: deal it out by learner.shard"
            )
        self._replicas_checked = True

    def _check_replicated_steps(self) -> None:
        self.world.check_same("replicated warm start", [("samples seen", str(self.samples_seen))])

    def _leave_replication(self) -> None:
        """Rank 0's state everywhere, in case replicas computed differently; own random streams."""
        self._check_replicated_steps()
        broadcast_model(self.model, self.world)
        broadcast_optimizer(self.optimizer, self.world)
        if self._streams is not None:
            self._streams.restore()

    def finish(self) -> None:
        """This rank has no more data. Collective.

        It takes part in the others' steps with samples=0 until every rank has called finish(). That
        needs their counts: with `global_samples` all ranks must have made the same steps.
        """
        self._check_between_steps("finish")
        if self._replicating and not self._finished and self.world.size > 1:
            self._check_replicated_steps()
        while not self._finished and not self._alone:
            request = CountRequest(self.comm, self.wire, samples=0, weight=0.0, finished=True)
            with self.clock.phase("wait"):
                count = request.result()
            if count.finished == self.world.size:
                break
            self._open, self._clean = True, self._complete(count)
            self.step()
        self._reset_step()
        if not self._finished:
            self.world.free(self.comm)
        self._finished = True

    def state_dict(self) -> dict[str, Any]:
        """Counters and this rank's residuals, as tensors and plain values.

        Raises:
            RuntimeError: between backward() and step().
        """
        self._check_between_steps("state_dict")
        counters = {name: getattr(self, name) for name in _COUNTERS}
        place = {"rank": self.world.rank, "size": self.world.size}
        return {**place, **counters, "exchanges": self._exchange_states()}

    def _exchange_states(self) -> list[dict[str, Any]]:
        exchanges = self._exchanges[self.quant].exchanges if self._exchanges else []
        return [exchange.state_dict() for exchange in exchanges]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave on this rank.

        Raises:
            ValueError: the state is of another rank, another number of ranks or another layout.
        """
        self._check_between_steps("load_state_dict")
        check_keys(state, ("rank", "size", *_COUNTERS, "exchanges"))
        came, mine = (state["rank"], state["size"]), (self.world.rank, self.world.size)
        if came != mine:
            raise ValueError(
                f"learner state: is of rank {came[0]} of {came[1]}; this is rank {mine[0]} of"
                f" {mine[1]}: load each rank's own state, on the same number of ranks"
            )
        replicated = self._replicating
        exchanges = self._exchanges[self.quant].exchanges if self._exchanges else []
        if len(state["exchanges"]) != len(exchanges):
            raise ValueError(
                f"learner state: has {len(state['exchanges'])} buckets; this learner has"
                f" {len(exchanges)}: use the same bucket_mb"
            )
        for exchange, saved in zip(exchanges, state["exchanges"], strict=True):
            exchange.load_state_dict(saved)
        for name in _COUNTERS:
            setattr(self, name, int(state[name]))
        if replicated and not self._replicating and self._streams is not None:
            self._streams.restore()


def _refuse_unbuilt(*, overlap: bool | str, delay: int, method: str) -> None:
    """Options of the contract that this version cannot honour."""
    if overlap not in ("auto", False):
        raise ValueError(
            f'overlap: got {overlap!r}; this version exchanges after backward: use "auto" or False'
        )
    if delay != 0:
        raise ValueError(f"delay: got {delay!r}; this version applies each gradient at once: use 0")
    if method != "sgd":
        raise ValueError(
            f'method: got {method!r}; this version exchanges gradients only: use "sgd"'
        )
