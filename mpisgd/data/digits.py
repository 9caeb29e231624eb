"""scikit-learn's handwritten digits: always there, because they come with the package.

1,797 grey images of 8x8 with values 0 to 16 (E. Alpaydin, C. Kaynak: Optical Recognition of
Handwritten Digits, UCI).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .base import ImageSet
from .grey import channel_statistics, repeated

# Every fifth image of the set, sorted by digit and permuted within each, is a test image: 360 of
# 1,797.
EVERY = 5
SPLIT_SEED = 1797


def load(directory: Path) -> ImageSet:
    """1,437 training and 360 test images, 3x8x8; `directory` is not read."""
    del directory
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images.astype(np.uint8))
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    train, test = split(bunch.target)
    mean, std = channel_statistics(images[train])
    return ImageSet(
        name="digits",
        classes=10,
        train_images=repeated(images[train]),
        train_labels=labels[train],
        test_images=repeated(images[test]),
        test_labels=labels[test],
        mean=(mean,) * 3,
        std=(std,) * 3,
        shift=1,
        flip=False,  # a mirrored digit is another sign
        fill=0,
    )


def split(labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of the training and the test part, stratified by `labels`, (N,) integers."""
    rng = np.random.Generator(np.random.PCG64(SPLIT_SEED))
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    is_test = np.arange(len(labels)) % EVERY == 0
    return torch.from_numpy(by_class[~is_test]), torch.from_numpy(by_class[is_test])
