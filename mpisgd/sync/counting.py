"""The global count of a step: how many samples all ranks had, and how many ranks are done."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpisgd import waiting
from mpisgd.ranges import is_whole

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpisgd.collectives.wire import Wire

# samples and the number of finished ranks share one float64, exact up to 2^53.
_FINISHED_UNIT = 2.0**36


class Count(NamedTuple):
    """Totals over all ranks."""

    samples: int
    weight: float
    finished: int


def check_samples(samples: int, name: str = "samples") -> int:
    """`samples` as an int. Raises TypeError or ValueError unless whole, 0 to 2^31-1."""
    if not is_whole(samples):
        raise TypeError(f"{name}: got {samples!r}; wanted a whole number of samples")
    if not 0 <= samples < 2**31:
        raise ValueError(f"{name}: got {samples}; wanted 0 to {2**31 - 1}")
    return int(samples)


def check_weight(weight: float) -> float:
    """`weight` as a float. Raises ValueError unless it is finite and not negative."""
    try:
        value = float(weight)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < 1e30:  # also NaN; sums over ranks and passes stay finite
        raise ValueError(
            f"weight: got {weight!r}; wanted the number of units that the loss is a mean over,"
            " 0 or more"
        )
    return value


class CountRequest:
    """A 16-byte non-blocking sum over ranks, started by `backward()` and read by `wait()`."""

    def __init__(
        self, comm: MPI.Comm, wire: Wire, *, samples: int, weight: float, finished: bool = False
    ) -> None:
        """Start the sum. Every rank of `comm` must do so equally often."""
        self._own = np.array([samples + _FINISHED_UNIT * finished, weight], np.float64)
        self._values = np.empty_like(self._own)
        self._request: MPI.Request | None = comm.Iallreduce(
            self._own, self._values
        )  # mpi4py's default is the sum
        wire.control_bytes += self._values.nbytes

    def __del__(self) -> None:
        """A step that nobody completes (an error between) leaves the sum under way."""
        request = getattr(self, "_request", None)
        if request is not None:
            waiting.abandon([request])

    def result(self) -> Count:
        """Wait for the totals."""
        request, self._request = self._request, None
        waiting.wait_all([request], what="the sample count of a step")
        finished, samples = divmod(float(self._values[0]), _FINISHED_UNIT)
        return Count(int(samples), float(self._values[1]), int(finished))
