"""Random shifts and flips: drawn for a whole sweep at once, applied to a batch on its device.

What a sample gets depends on (seed, sweep, index) alone, so a run is the same at every number of
ranks and at every minibatch size (docs/arithmetic.md, "Order of data").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from .order import Indices


class Draws(NamedTuple):
    """One entry a sample: shifts in pixels, (m,) int64, and whether to mirror, (m,) bool."""

    dy: NDArray[np.int64]
    dx: NDArray[np.int64]
    flip: NDArray[np.bool_]


@lru_cache(maxsize=2)
def whole_set(seed: int, sweep: int, n_samples: int, shift: int, flip: bool) -> Draws:
    """The draws of sweep `sweep` for the whole training set, entry i for sample i.

    From `SeedSequence((seed, 1, sweep))`, in the order dy, dx, flip: `Generator.integers(-shift,
    shift + 1, n_samples)` twice, then `integers(0, 2, n_samples) == 1`; flips are False and not
    drawn where the set does not want them.
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, 1, sweep))))
    dy = rng.integers(-shift, shift + 1, n_samples)
    dx = rng.integers(-shift, shift + 1, n_samples)
    mirrored = rng.integers(0, 2, n_samples) == 1 if flip else np.zeros(n_samples, bool)
    return Draws(dy, dx, mirrored)


@dataclass(frozen=True)
class Augmentation:
    """What is drawn for a training set: bound to one seed, one size and one rule."""

    seed: int
    n_samples: int
    shift: int  # pixels, in both directions
    flip: bool  # left-right, every second sample on average

    def draws(self, sweeps: Indices, indices: Indices) -> Draws:
        """The draws of the samples `indices` of the sweeps `sweeps`, each (m,) int64."""
        m = len(indices)
        out = Draws(np.zeros(m, np.int64), np.zeros(m, np.int64), np.zeros(m, np.bool_))
        for sweep in np.unique(sweeps):
            here = sweeps == sweep
            drawn = whole_set(self.seed, int(sweep), self.n_samples, self.shift, self.flip)
            for mine, everyone in zip(out, drawn, strict=True):
                mine[here] = everyone[indices[here]]
        return out


def shift_and_flip(images: torch.Tensor, draws: Draws, *, shift: int, fill: int) -> torch.Tensor:
    """Move every image by its own (dy, dx), then mirror those whose flip is set.

    Args:
        images: (m, C, H, W), any dtype and device. Pixel (y, x) of the result is (y + dy, x + dx)
            of the image.
        draws: One entry an image.
        shift: Largest shift that `draws` may hold.
        fill: Value of what comes in from outside the image.

    Returns:
        A new tensor of the same shape, dtype and device.
    """
    if len(images) == 0:
        return images.clone()
    height, width = images.shape[2:]
    padded = F.pad(images, (shift, shift, shift, shift), value=fill)
    # All windows of the image's size as a view (m, C, 2 shift + 1, 2 shift + 1, H, W): picking one
    # a sample copies the batch once, with no loop over samples.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    dy, dx, flip = (torch.from_numpy(draw).to(images.device) for draw in draws)
    moved = windows[torch.arange(len(images), device=images.device), :, dy + shift, dx + shift]
    return torch.where(flip.view(-1, 1, 1, 1), moved.flip(3), moved)
