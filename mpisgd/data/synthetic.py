"""Generated sets that can be learned: a template for each class, and noise.

The same numbers on every machine that has the same numpy; they are data, so the seed of a run does
not change them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from .base import ImageSet, VectorSet

IMAGES = (10_000, 2_000)  # training, test
VECTORS = (10_000, 2_000)
IMAGE_CLASSES = 10
# The speech task that 1-bit SGD was published with: 11 frames of 40 values, 9,304 tied states
# (Seide et al., Interspeech 2014).
VECTOR_CLASSES = 9_304
VECTOR_VALUES = 440


def load_images(directory: Path, seed: int = 0) -> ImageSet:
    """3x32x32 images of 10 classes; `directory` is not read."""
    del directory
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, 10))))
    coarse = rng.integers(32, 96, (IMAGE_CLASSES, 3, 8, 8), dtype=np.uint8)
    templates = coarse.repeat(4, axis=2).repeat(4, axis=3)
    parts = []
    for count in IMAGES:
        labels = rng.integers(0, IMAGE_CLASSES, count)
        noise = rng.integers(0, 128, (count, 3, 32, 32), dtype=np.uint8)
        images = templates[labels] + noise // 2  # 32 ... 158
        parts += [torch.from_numpy(images), torch.from_numpy(labels)]
    train_images, train_labels, test_images, test_labels = parts
    return ImageSet(
        name="synthetic",
        classes=IMAGE_CLASSES,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        mean=(95.0,) * 3,
        std=(26.0,) * 3,
        shift=4,
        flip=True,
        fill=95,
    )


def load_vectors(directory: Path, seed: int = 0) -> VectorSet:
    """440 float32 values of 9,304 classes, common and rare ones; `directory` is not read."""
    del directory
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, 11))))
    templates = rng.standard_normal((VECTOR_CLASSES, VECTOR_VALUES), dtype=np.float32)
    rank = np.arange(VECTOR_CLASSES)
    frequency = 1.0 / (rank + 10.0)
    frequency /= frequency.sum()
    parts: list[torch.Tensor] = []
    for count in VECTORS:
        labels = rng.choice(VECTOR_CLASSES, count, p=frequency)
        parts += [torch.from_numpy(_noisy(templates[labels], rng)), torch.from_numpy(labels)]
    train_vectors, train_labels, test_vectors, test_labels = parts
    return VectorSet(
        name="synthetic",
        classes=VECTOR_CLASSES,
        train_vectors=train_vectors,
        train_labels=train_labels,
        test_vectors=test_vectors,
        test_labels=test_labels,
    )


def _noisy(clean: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    # As much noise as signal, scaled back to unit variance.
    noise = rng.standard_normal(clean.shape, dtype=np.float32)
    noise += clean
    noise *= np.float32(0.5**0.5)
    return noise
