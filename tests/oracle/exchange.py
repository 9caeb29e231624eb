"""One bucket over n simulated ranks, by stripes ("Stripes", "32 bits")."""

from __future__ import annotations

import numpy as np

from . import onebit
from .layout import Bucket


class SimulatedExchange:
    """The residuals of all ranks for one bucket, and the sum of what the ranks pass.

    Attributes:
        worker: what each rank owes of its own gradients, one (size,) float32 array a rank.
        owner: what the owners owe of the sums, (size,) float32; each owns its stripe of it.
    """

    def __init__(self, bucket: Bucket, *, ranks: int) -> None:
        self.bucket = bucket
        self.ranks = ranks
        self.worker = [np.zeros(bucket.size, np.float32) for _ in range(ranks)]
        self.owner = np.zeros(bucket.size, np.float32)
        self._next_worker = self.worker
        self._next_owner = self.owner

    def sum(self, contributions: list[np.ndarray]) -> tuple[np.ndarray, bool]:
        """Sum one (size,) float32 array a rank; also whether all that travelled was finite.

        The residuals stay as they are until `commit`.
        """
        with np.errstate(all="ignore"):  # an overflow is a result here
            return self._sum(contributions)

    def _sum(self, contributions: list[np.ndarray]) -> tuple[np.ndarray, bool]:
        self._next_worker = [e.copy() for e in self.worker]
        self._next_owner = self.owner.copy()
        total = np.zeros(self.bucket.size, np.float32)
        clean = True
        for owner in range(self.ranks):
            stripe = self.bucket.stripe(owner, self.ranks)
            clean &= self._sum_raw(contributions, total, slice(*stripe.raw))
            for start, stop in self.bucket.columns[slice(*stripe.columns)]:
                clean &= self._sum_column(contributions, total, slice(start, stop))
        return total, clean

    def _sum_raw(self, contributions: list[np.ndarray], total: np.ndarray, at: slice) -> bool:
        sums = in_rank_order([values[at] for values in contributions])
        total[at] = sums
        return all(np.isfinite(values[at]).all() for values in [*contributions, total])

    def _sum_column(self, contributions: list[np.ndarray], total: np.ndarray, at: slice) -> bool:
        messages = []
        for rank, values in enumerate(contributions):
            coded, self._next_worker[rank][at] = onebit.encode(values[at], self.worker[rank][at])
            messages.append(coded)
        sums = in_rank_order([onebit.decode(coded) for coded in messages])
        answer, self._next_owner[at] = onebit.encode(sums, self.owner[at])
        total[at] = onebit.decode(answer)
        return answer.finite and all(coded.finite for coded in messages)

    def commit(self) -> None:
        """The step counts: take the new residuals."""
        self.worker, self.owner = self._next_worker, self._next_owner

    def repay(self, i: int, total: np.ndarray) -> None:
        """Nobody had a gradient for tensor i: what was decoded goes back to rank 0's debt."""
        if i in self.bucket.coded:
            at = self.bucket.range_of(i)
            self._next_worker[0][at] = self._next_worker[0][at] + total[at]


def in_rank_order(parts: list[np.ndarray]) -> np.ndarray:
    """Rank 0's values, the others' added one after another."""
    total = parts[0].copy()
    for part in parts[1:]:
        total = total + part
    return total
