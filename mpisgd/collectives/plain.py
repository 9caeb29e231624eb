"""MPI's own allreduce of fp32 values."""

from __future__ import annotations

import time
from typing import ClassVar

import numpy as np

from mpisgd import waiting
from mpisgd.kernels.float32 import all_finite

from .base import AbstractCollective, Call, Feedback, Floats
from .header import Flags

# Open MPI 5 refuses 2^31 elements and more in one call; results do not depend on the cut.
CHUNK_ELEMENTS = 1 << 28


class Plain(AbstractCollective):
    """MPI_Iallreduce of the whole bucket, in chunks below 2^31 elements.

    1. Sum the values in place, and (another 4 bytes) OR the flags.
    2. Every rank looks for non-finite values in the sum, which is the same everywhere, so the
       verdict is too.

    Cost, booked by formula: 2 (n-1)/n * 4N bytes and one message a chunk per rank; 4 control bytes.
    """

    legal_bits: ClassVar[frozenset[int] | None] = frozenset({32})

    def new_feedback(self) -> Feedback:
        """Nothing is lost at 32 bits, so there is nothing to remember."""
        return Feedback(0, 0)

    def run(self, values: Floats, feedback: Feedback, call: Call) -> int:
        """See `AbstractCollective.run`."""
        from mpi4py import MPI

        started = time.perf_counter()
        flags = np.array([call.flags], np.int32)
        requests = [self.comm.Iallreduce(MPI.IN_PLACE, flags, op=MPI.BOR)]
        chunks = range(0, len(values), CHUNK_ELEMENTS)
        for lo in chunks:
            part = values[lo : lo + CHUNK_ELEMENTS]
            requests.append(self.comm.Iallreduce(MPI.IN_PLACE, part, op=MPI.SUM))
        waiting.wait_all(requests, what=f"allreduce of step {call.step}")
        waited = time.perf_counter()
        finite = all_finite(values)
        ended = time.perf_counter()
        self.clock.add("transfer", waited - started)
        self.clock.add("decode", ended - waited)
        self.wire.seconds += ended - started
        self.wire.bytes += 2 * (self.size - 1) * values.nbytes // self.size
        self.wire.messages += len(chunks)
        self.wire.control_bytes += flags.nbytes
        self.sequence += 1
        return int(flags[0]) | (0 if finite else Flags.NONFINITE)
