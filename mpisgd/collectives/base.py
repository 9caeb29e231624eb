"""What every collective is: a sum of one bucket over all ranks, the same bits on each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpisgd.buckets import Layout
    from mpisgd.quant.base import AbstractQuantizer
    from mpisgd.timing import Clock

    from .wire import Wire

Floats = NDArray[np.float32]


class Feedback:
    """The residuals of one bucket, each twice: the committed one and the one being written.

    A clean step commits (swaps); a flagged one does nothing and so changes nothing.
    """

    def __init__(self, worker: int, owner: int) -> None:
        """Zero residuals of `worker` values (all coded values) and `owner` (of the own stripe)."""
        self.worker = np.zeros(worker, np.float32)
        self.owner = np.zeros(owner, np.float32)
        self.next_worker = np.zeros(worker, np.float32)
        self.next_owner = np.zeros(owner, np.float32)

    def commit(self) -> None:
        """Make the residuals that the last exchange wrote the committed ones."""
        self.worker, self.next_worker = self.next_worker, self.worker
        self.owner, self.next_owner = self.next_owner, self.owner


@dataclass(frozen=True)
class Call:
    """What an exchange says about itself in its headers."""

    step: int = 0
    samples: int = 0  # global samples seen, this step's included
    flags: int = 0


class AbstractCollective(ABC):
    """Sums a bucket over the ranks of a communicator. Buffers are allocated once, at birth."""

    legal_bits: ClassVar[frozenset[int] | None]  # None: every registered width

    def __init__(
        self,
        layout: Layout,
        *,
        quantizer: AbstractQuantizer,
        comm: MPI.Comm,
        wire: Wire,
        clock: Clock,
    ) -> None:
        """Prepare to sum buckets of `layout` over `comm` (private to this collective's owner)."""
        self.layout = layout
        self.quantizer = quantizer
        self.comm = comm
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.wire = wire
        self.clock = clock
        self.sequence = 0

    @abstractmethod
    def new_feedback(self) -> Feedback:
        """Zero residuals of the sizes that this collective needs."""

    @abstractmethod
    def run(self, values: Floats, feedback: Feedback, call: Call) -> int:
        """Replace `values` by the sum over ranks, as quantized. Collective.

        Args:
            values: (numel,) float32, this rank's share; overwritten by the sum, bit-identical on
                all ranks.
            feedback: committed residuals are read, next ones written; the caller commits.
            call: step, samples and this rank's flags.

        Returns:
            The OR of all ranks' `Flags`, equal on all ranks. With NONFINITE set `values` is not
            to be used.
        """
