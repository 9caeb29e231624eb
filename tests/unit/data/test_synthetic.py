"""Generated sets: the same every time, and a template of each class can be found again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mpisgd.data import synthetic
from mpisgd.data.base import ImageSet, VectorSet

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return synthetic.load_images(Path())


@pytest.fixture(scope="module")
def vectors() -> VectorSet:
    return synthetic.load_vectors(Path())


def test_sizes(images: ImageSet, vectors: VectorSet) -> None:
    assert (images.train_size, images.test_size) == (10_000, 2_000)
    assert (images.channels, images.image_size, images.classes) == (3, 32, 10)
    assert images.train_images.dtype == torch.uint8
    assert (vectors.train_size, vectors.test_size) == (10_000, 2_000)
    assert (vectors.channels, vectors.image_size, vectors.classes) == (440, 0, 9304)
    assert vectors.train_vectors.dtype == torch.float32


def test_same_numbers_every_time_and_other_ones_for_another_seed(
    images: ImageSet, vectors: VectorSet
) -> None:
    again = synthetic.load_images(Path())
    assert torch.equal(again.train_images, images.train_images)
    assert torch.equal(again.test_labels, images.test_labels)
    other = synthetic.load_images(Path(), seed=1)
    assert not torch.equal(other.train_images, images.train_images)
    assert torch.equal(synthetic.load_vectors(Path()).train_vectors, vectors.train_vectors)
    assert not torch.equal(
        synthetic.load_vectors(Path(), seed=1).train_vectors, vectors.train_vectors
    )


def test_images_are_about_standardised(images: ImageSet) -> None:
    x, _ = images.test_batch(np.arange(2000), device=CPU)
    assert abs(x.mean().item()) < 0.2
    assert abs(x.std().item() - 1) < 0.1


def test_vectors_are_about_standardised(vectors: VectorSet) -> None:
    assert abs(vectors.train_vectors.mean().item()) < 0.1
    assert abs(vectors.train_vectors.std().item() - 1) < 0.1


def test_class_means_of_the_training_images_classify_the_test_images(images: ImageSet) -> None:
    flat = images.train_images.float().flatten(1)
    means = torch.stack([flat[images.train_labels == c].mean(0) for c in range(10)])
    nearest = torch.cdist(images.test_images.float().flatten(1), means).argmin(1)
    assert (nearest == images.test_labels).float().mean() > 0.99


def test_common_classes_can_be_learned_from_the_training_vectors(vectors: VectorSet) -> None:
    seen = torch.bincount(vectors.train_labels, minlength=9304)
    common = torch.nonzero(seen >= 20).flatten()
    assert len(common) >= 20
    means = torch.stack(
        [vectors.train_vectors[vectors.train_labels == c].mean(0) for c in common.tolist()]
    )
    mine = torch.isin(vectors.test_labels, common)
    nearest = torch.cdist(vectors.test_vectors[mine], means).argmin(1)
    assert (common[nearest] == vectors.test_labels[mine]).float().mean() > 0.95
