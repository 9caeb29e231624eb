"""MPI's own allreduce of fp32 values."""

from __future__ import annotations

import time
from typing import ClassVar

import numpy as np

from mpisgd import waiting
from mpisgd.kernels.float32 import all_finite

from .base import AbstractCollective, Call, Feedback, Floats
from .header import Flags, MismatchError

# Open MPI 5 refuses 2^31 elements and more in one call; results do not depend on the cut.
CHUNK_ELEMENTS = 1 << 28


class Plain(AbstractCollective):
    """MPI_Iallreduce of the whole bucket, in chunks below 2^31 elements.

    1. Sum the values in place; 40 more bytes carry the largest step, samples and flags.
    2. Every rank looks for non-finite values in the sum, which is the same everywhere, so the
       verdict is too.

    Cost per rank, booked by formula: 2 (n-1)/n * 4N bytes, one message a chunk, 40 control bytes.
    """

    legal_bits: ClassVar[frozenset[int] | None] = frozenset({32})
    _summed_bytes = 0

    def _formula_bytes(self) -> int:
        return 2 * (self.size - 1) * self._summed_bytes // self.size

    def new_feedback(self) -> Feedback:
        """Nothing is lost at 32 bits, so there is nothing to remember."""
        return Feedback(0, 0)

    def run(self, values: Floats, feedback: Feedback, call: Call) -> int:
        """See `AbstractCollective.run`."""
        from mpi4py import MPI

        started = time.perf_counter()
        # The largest x and the largest -x tell whether all ranks have the same x.
        mine = [call.step, -call.step, call.samples, -call.samples]
        agreed = np.array([*mine, call.flags], np.int64)
        requests = [self.comm.Iallreduce(MPI.IN_PLACE, agreed, op=MPI.MAX)]
        chunks = range(0, len(values), CHUNK_ELEMENTS)
        for lo in chunks:
            part = values[lo : lo + CHUNK_ELEMENTS]
            requests.append(self.comm.Iallreduce(MPI.IN_PLACE, part, op=MPI.SUM))
        waiting.wait_all(requests, what=f"allreduce of step {call.step}")
        if agreed[:4].tolist() != mine:
            raise MismatchError(
                f"exchange: rank {self.rank} is in step {call.step} with {call.samples} samples"
                f" seen, others in up to step {agreed[0]} with up to {agreed[2]}; all ranks must"
                " call backward() and step() equally often and agree on global_samples"
            )
        waited = time.perf_counter()
        finite = all_finite(values)
        ended = time.perf_counter()
        self.clock.add("transfer", waited - started)
        self.clock.add("decode", ended - waited)
        self.wire.seconds += ended - started
        # Rounded over the whole run, not in each step.
        self.wire.bytes -= self._formula_bytes()
        self._summed_bytes += values.nbytes
        self.wire.bytes += self._formula_bytes()
        self.wire.messages += len(chunks)
        self.wire.control_bytes += agreed.nbytes
        self.sequence += 1
        return int(agreed[4]) | (0 if finite else Flags.NONFINITE)
