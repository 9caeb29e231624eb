"""The stream of samples: against its definition, and the same at every number of ranks."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisgd.data.order import minibatch, permutation


def stream(seed: int, n_samples: int, sweeps: int) -> list[tuple[int, int]]:
    """The beginning of the endless stream, from the text of docs/arithmetic.md."""
    out = []
    for s in range(sweeps):
        bits = np.random.PCG64(np.random.SeedSequence((seed, 0, s)))
        out += [(s, int(i)) for i in np.random.Generator(bits).permutation(n_samples)]
    return out


def pairs(k: int, **options: object) -> list[tuple[int, int]]:
    sweeps, indices = minibatch(k, **options)
    assert sweeps.dtype == indices.dtype == np.int64
    return list(zip(sweeps.tolist(), indices.tolist(), strict=True))


@given(
    n_samples=st.integers(1, 40),
    batch=st.integers(1, 90),  # up to more than two sweeps
    seed=st.integers(0, 2**40),
    k=st.integers(0, 5),
)
def test_is_the_k_th_piece_of_the_stream(n_samples: int, batch: int, seed: int, k: int) -> None:
    whole = stream(seed, n_samples, (k + 1) * batch // n_samples + 1)
    got = pairs(k, batch=batch, seed=seed, n_samples=n_samples)
    assert got == whole[k * batch : (k + 1) * batch]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("batch", [1, 3, 10, 128])
def test_parts_are_disjoint_and_make_the_whole(size: int, batch: int) -> None:
    options = {"batch": batch, "seed": 7, "n_samples": 50}
    for k in range(8):
        whole = pairs(k, **options)
        parts = [pairs(k, **options, shard=(rank, size)) for rank in range(size)]
        for rank, part in enumerate(parts):
            assert part == whole[rank::size]
        assert sorted(chain(*parts)) == sorted(whole)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_every_sweep_visits_every_sample_once() -> None:
    seen = list(chain(*(pairs(k, batch=7, seed=1, n_samples=21) for k in range(9))))
    assert sorted(seen) == [(s, i) for s in range(3) for i in range(21)]
    assert [i for s, i in seen if s == 0] != [i for s, i in seen if s == 1]


def test_minibatch_crosses_the_end_of_a_sweep() -> None:
    sweeps, indices = minibatch(2, batch=8, seed=3, n_samples=20)
    assert sweeps.tolist() == [0] * 4 + [1] * 4
    np.testing.assert_array_equal(indices[:4], permutation(3, 0, 20)[16:])
    np.testing.assert_array_equal(indices[4:], permutation(3, 1, 20)[:4])


def test_rank_beyond_a_small_minibatch_gets_nothing() -> None:
    sweeps, indices = minibatch(0, batch=2, seed=0, n_samples=10, shard=(3, 4))
    assert sweeps.shape == indices.shape == (0,)


def test_seeds_give_different_orders() -> None:
    orders = {tuple(permutation(seed, sweep, 30)) for seed in range(3) for sweep in range(3)}
    assert len(orders) == 9


def test_cached_permutations_cannot_be_spoilt() -> None:
    _, indices = minibatch(0, batch=20, seed=5, n_samples=20)
    indices[:] = -1
    assert sorted(pairs(0, batch=20, seed=5, n_samples=20)) == [(0, i) for i in range(20)]
    with pytest.raises(ValueError, match="read-only"):
        permutation(5, 0, 20)[0] = 1


def test_only_two_permutations_are_kept() -> None:
    for k in range(6):
        minibatch(k, batch=10, seed=5, n_samples=10)
    assert permutation.cache_info().currsize == 2


@pytest.mark.parametrize(
    "wrong",
    [{"n_samples": 0}, {"batch": 0}, {"shard": (2, 2)}, {"shard": (-1, 2)}, {"shard": (0, 0)}],
)
def test_impossible_requests_are_refused(wrong: dict[str, object]) -> None:
    options: dict[str, object] = {"batch": 4, "seed": 0, "n_samples": 10, **wrong}
    with pytest.raises(ValueError, match="minibatch: "):
        minibatch(0, **options)
