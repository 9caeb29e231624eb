"""Which sample is trained when: an endless stream of sweeps, cut into minibatches.

The definition is docs/arithmetic.md, "Order of data". Nothing here depends on the number of ranks:
a rank takes every n-th sample of a minibatch that is the same at every n.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Indices: TypeAlias = NDArray[np.int64]


# A minibatch touches one or two sweeps, so two permutations are all that is ever reused.
@lru_cache(maxsize=2)
def permutation(seed: int, sweep: int, n_samples: int) -> Indices:
    """The order in which sweep number `sweep` visits the samples: (n_samples,) int64, read-only."""
    stream = np.random.PCG64(np.random.SeedSequence((seed, 0, sweep)))
    order = np.random.Generator(stream).permutation(n_samples).astype(np.int64, copy=False)
    order.flags.writeable = False
    return order


def minibatch(
    k: int, *, batch: int, seed: int, n_samples: int, shard: tuple[int, int] = (0, 1)
) -> tuple[Indices, Indices]:
    """Samples k*batch ... (k+1)*batch - 1 of the endless stream, or one rank's part of them.

    Args:
        k: Number of the minibatch, from 0. Minibatches cross the end of a sweep; none is shorter.
        batch: Global minibatch, the sum over ranks.
        seed: Seed of the run, not negative.
        n_samples: Size of the training set.
        shard: (rank, n): every n-th sample of the minibatch, starting with the rank-th. (0, 1) is
            all of it.

    Returns:
        (sweeps, indices), each (m,) int64: the sweep each sample belongs to and its index in the
        training set. m = 0 for a rank that the minibatch is too small for.

    Raises:
        ValueError: if the set is empty, the minibatch has no samples or the shard does not exist.
    """
    rank, n = shard
    if n_samples < 1 or batch < 1 or not 0 <= rank < n:
        raise ValueError(
            f"minibatch: {n_samples} samples, batch {batch}, shard {shard}; wanted at least one "
            "sample, "
            "a batch of at least 1 and 0 <= rank < n; check the data set and --batch"
        )
    position = np.arange(k * batch + rank, (k + 1) * batch, n, dtype=np.int64)
    sweeps, offsets = np.divmod(position, n_samples)
    indices = np.empty_like(position)
    for sweep in np.unique(sweeps):
        here = sweeps == sweep
        indices[here] = permutation(seed, int(sweep), n_samples)[offsets[here]]
    return sweeps, indices
