"""Augmentation: every pixel against a loop, and the same draws at every number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mpisgd.data.augment import Augmentation, Draws, shift_and_flip, whole_set
from mpisgd.data.order import minibatch


def by_loops(images: np.ndarray, draws: Draws, fill: int) -> np.ndarray:
    count, _, height, width = images.shape
    out = np.full_like(images, fill)
    for b in range(count):
        for y in range(height):
            for x in range(width):
                column = width - 1 - x if draws.flip[b] else x
                row, column = y + draws.dy[b], column + draws.dx[b]
                if 0 <= row < height and 0 <= column < width:
                    out[b, :, y, x] = images[b, :, row, column]
    return out


@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("size", [(5, 5), (4, 7)])
def test_every_pixel_comes_from_where_it_should(shift: int, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (24, 3, *size), dtype=np.uint8)
    draws = whole_set(0, 0, 24, shift, True)
    moved = shift_and_flip(torch.from_numpy(images.copy()), draws, shift=shift, fill=77)
    assert moved.dtype == torch.uint8
    np.testing.assert_array_equal(moved.numpy(), by_loops(images, draws, 77))


def test_grey_images_repeated_as_a_view_are_moved_too() -> None:
    images = torch.arange(2 * 16, dtype=torch.uint8).view(2, 1, 4, 4)
    draws = Draws(np.array([1, -1]), np.array([0, 1]), np.array([False, True]))
    expanded = shift_and_flip(images.expand(-1, 3, -1, -1), draws, shift=1, fill=9)
    alone = shift_and_flip(images, draws, shift=1, fill=9)
    assert torch.equal(expanded, alone.repeat(1, 3, 1, 1))


def test_no_images() -> None:
    nothing = torch.empty((0, 3, 8, 8), dtype=torch.uint8)
    draws = Augmentation(0, 10, 1, True).draws(np.empty(0, np.int64), np.empty(0, np.int64))
    assert shift_and_flip(nothing, draws, shift=1, fill=0).shape == (0, 3, 8, 8)


def test_draws_are_those_of_the_definition() -> None:
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((42, 1, 3))))
    dy, dx = rng.integers(-4, 5, 100), rng.integers(-4, 5, 100)
    flip = rng.integers(0, 2, 100) == 1
    drawn = Augmentation(42, 100, 4, True).draws(np.full(100, 3), np.arange(100))
    np.testing.assert_array_equal(drawn.dy, dy)
    np.testing.assert_array_equal(drawn.dx, dx)
    np.testing.assert_array_equal(drawn.flip, flip)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("batch", [5, 32, 100])
def test_what_a_sample_gets_does_not_depend_on_ranks_or_batch(size: int, batch: int) -> None:
    n_samples, seed = 60, 9
    rule = Augmentation(seed, n_samples, 4, True)
    for k in range(4):
        for rank in range(size):
            sweeps, indices = minibatch(
                k, batch=batch, seed=seed, n_samples=n_samples, shard=(rank, size)
            )
            drawn = rule.draws(sweeps, indices)
            for j, (sweep, index) in enumerate(zip(sweeps, indices, strict=True)):
                everyone = whole_set(seed, int(sweep), n_samples, 4, True)
                assert (drawn.dy[j], drawn.dx[j], drawn.flip[j]) == (
                    everyone.dy[index],
                    everyone.dx[index],
                    everyone.flip[index],
                )


def test_draws_differ_between_samples_sweeps_and_seeds() -> None:
    sets = [whole_set(seed, sweep, 500, 4, True) for seed in (0, 1) for sweep in (0, 1)]
    assert len({drawn.dy.tobytes() + drawn.dx.tobytes() for drawn in sets}) == 4
    for drawn in sets:
        assert set(drawn.dy) == set(drawn.dx) == set(range(-4, 5))
        assert 200 < drawn.flip.sum() < 300
        assert not np.array_equal(drawn.dy, drawn.dx)


def test_sets_without_flips_are_never_mirrored() -> None:
    drawn = whole_set(0, 0, 500, 1, False)
    assert not drawn.flip.any()
    np.testing.assert_array_equal(drawn.dy, whole_set(0, 0, 500, 1, True).dy)
