"""The order of the training samples ("Order of data")."""

from __future__ import annotations

import numpy as np


def sweep(s: int, *, samples: int, seed: int) -> np.ndarray:
    """The permutation of sweep s."""
    sequence = np.random.SeedSequence((seed, 0, s))
    return np.random.Generator(np.random.PCG64(sequence)).permutation(samples)


def minibatch(k: int, *, batch: int, samples: int, seed: int) -> list[int]:
    """Indices of minibatch k of the endless stream of sweeps."""
    places = range(k * batch, (k + 1) * batch)
    sweeps = {
        s: sweep(s, samples=samples, seed=seed) for s in {place // samples for place in places}
    }
    return [int(sweeps[place // samples][place % samples]) for place in places]


def part(indices: list[int], rank: int, ranks: int) -> list[int]:
    """Every n-th sample, from the rank-th."""
    return indices[rank::ranks]
