"""From gradients over flat buckets and the exchange to p.grad."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from mpisgd import waiting
from mpisgd.buckets import Layout, cut_buckets
from mpisgd.buckets.flat import Bucket, Storage
from mpisgd.collectives.base import Call
from mpisgd.collectives.header import Flags
from mpisgd.exchange import Exchange

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpisgd.collectives.wire import Wire
    from mpisgd.timing import Clock
    from mpisgd.world import World

Named = list[tuple[str, nn.Parameter]]


def cut_layouts(
    parameters: Named, *, bits: int, column: int, min_numel: int, bucket_mb: float | None
) -> list[Layout]:
    """A layout per bucket for parameters in wire order."""
    tensors = [(name, tuple(parameter.shape)) for name, parameter in parameters]
    return [
        Layout(group, column=column, min_numel=min_numel, all_raw=bits == 32)
        for group in cut_buckets(tensors, bucket_mb=bucket_mb)
    ]


class GradientExchange:
    """The mean gradient over ranks at one width: a bucket and an exchange for each layout."""

    def __init__(
        self,
        parameters: Named,
        layouts: list[Layout],
        *,
        bits: int,
        collective: str,
        world: World,
        comm: MPI.Comm,
        wire: Wire,
        clock: Clock,
        storages: list[Storage] | None = None,
    ) -> None:
        """Prepare to exchange `parameters` as laid out. Collective.

        Args:
            parameters: names and parameters in wire order.
            layouts: of every bucket.
            bits: width.
            collective: "auto" or a name.
            world: the ranks.
            comm: the learner's own; buckets use it one after another.
            wire: totals to add to.
            clock: seconds to add to.
            storages: bucket memory of another width, used by turns.
        """
        self.parameters, self.bits = parameters, bits
        self._world, self._comm, self._wire, self._clock = world, comm, wire, clock
        shared: list[Storage | None] = (
            [*storages] if storages is not None else [None] * len(layouts)
        )
        self.buckets = [
            Bucket(layout, parameters, storage)
            for layout, storage in zip(layouts, shared, strict=True)
        ]
        self.exchanges = [
            Exchange(
                layout,
                world=world,
                quant=bits,
                collective=collective,
                wire=wire,
                clock=clock,
                comm=comm,
            )
            for layout in layouts
        ]

    @property
    def storages(self) -> list[Storage]:
        """The memory of the buckets."""
        return [bucket.storage for bucket in self.buckets]

    def run(
        self, gradients: Mapping[int, Tensor], factor: float, *, has_samples: bool, call: Call
    ) -> int:
        """Sum gradient * factor over ranks into p.grad; commit residuals if finite. Collective.

        Args:
            gradients: id of a parameter -> this rank's gradient.
            factor: this rank's share of the mean.
            has_samples: False: this rank has no say in which parameters were touched.
            call: step and samples, for the headers.

        Returns:
            The agreed `Flags`. With NONFINITE residuals are as before and p.grad is not to be
            used.
        """
        if has_samples and len(gradients) < len(self.parameters):
            call = Call(call.step, call.samples, call.flags | Flags.UNTOUCHED)
        flags = 0
        for bucket, exchange in zip(self.buckets, self.exchanges, strict=True):
            with self._clock.phase("encode"):
                bucket.load(gradients, factor)
            flags |= exchange.run(bucket.values, call)
        if flags & Flags.NONFINITE:
            return flags
        touched = {id(parameter) for _, parameter in self.parameters}
        if flags & Flags.UNTOUCHED:
            touched = self._agree_on_touched(set(gradients))
            self._keep_residuals(touched)
        with self._clock.phase("decode"):
            for bucket in self.buckets:
                bucket.store(touched)
            if self._overflowed():
                return flags | Flags.NONFINITE
        for exchange in self.exchanges:
            exchange.commit()
        return flags

    def _overflowed(self) -> bool:
        """Whether a mean is too large for its parameter's half precision; alike on all ranks."""
        halves = (p.grad for _, p in self.parameters if p.dtype != torch.float32)
        return any(grad is not None and not bool(torch.isfinite(grad).all()) for grad in halves)

    def _agree_on_touched(self, touched: set[int]) -> set[int]:
        """The parameters with a gradient on any rank. Collective, only when some rank lacks one."""
        own = np.array([id(p) in touched for _, p in self.parameters], np.int32)
        mask = np.empty_like(own)
        request = self._comm.Iallreduce(own, mask)  # the number of ranks that touched it
        waiting.wait_all([request], what="which gradients there are")
        self._wire.control_bytes += mask.nbytes
        return {id(p) for (_, p), anywhere in zip(self.parameters, mask, strict=True) if anywhere}

    def _keep_residuals(self, touched: set[int]) -> None:
        """Hand what was decoded for a tensor that nobody touched back to rank 0's residual."""
        if self._world.rank != 0:
            return
        for bucket, exchange in zip(self.buckets, self.exchanges, strict=True):
            coded = bucket.values[bucket.layout.raw_numel :]
            for index, parameter in enumerate(bucket.parameters):
                where = bucket.coded_slice(index)
                if id(parameter) not in touched and where is not None:
                    exchange.feedback.next_worker[where] += coded[where]

    @property
    def residuals(self) -> list[torch.Tensor]:
        """What this rank still owes, a flat float32 tensor per bucket."""
        return [exchange.residual for exchange in self.exchanges]
