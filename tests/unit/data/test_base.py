"""Batches of image and vector sets."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from mpisgd.data.augment import shift_and_flip
from mpisgd.data.base import ImageSet, VectorSet

CPU = torch.device("cpu")


def image_set(**changes: object) -> ImageSet:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (30, 3, 8, 8), dtype=torch.uint8, generator=generator)
    fields: dict[str, object] = {
        "name": "small",
        "classes": 5,
        "train_images": images[:20],
        "train_labels": torch.arange(20) % 5,
        "test_images": images[20:],
        "test_labels": torch.arange(10) % 5,
        "mean": (100.0, 120.0, 140.0),
        "std": (50.0, 60.0, 70.0),
        "shift": 2,
        "flip": True,
        "fill": 128,
    }
    return ImageSet(**{**fields, **changes})


def normalised(images: torch.Tensor) -> torch.Tensor:
    mean = torch.tensor([100.0, 120.0, 140.0]).view(3, 1, 1)
    std = torch.tensor([50.0, 60.0, 70.0]).view(3, 1, 1)
    return (images.float() - mean) / std


def test_sizes() -> None:
    data = image_set()
    assert (data.train_size, data.test_size, data.channels, data.image_size) == (20, 10, 3, 8)


def test_test_batch_is_normalised_and_not_moved() -> None:
    data = image_set()
    indices = np.array([3, 0, 9])
    x, y = data.test_batch(indices, device=CPU)
    assert x.dtype == torch.float32
    assert torch.equal(x, normalised(data.test_images[[3, 0, 9]]))
    assert torch.equal(y, data.test_labels[[3, 0, 9]])


def test_train_batch_moves_each_image_by_its_own_draw() -> None:
    data = image_set()
    rule = data.augmentation(11)
    indices, sweeps = np.array([5, 5, 7]), np.array([0, 1, 1])
    x, y = data.train_batch(indices, sweeps, device=CPU, augmentation=rule)
    for j in range(3):
        alone = shift_and_flip(
            data.train_images[indices[j : j + 1]],
            rule.draws(sweeps[j : j + 1], indices[j : j + 1]),
            shift=2,
            fill=128,
        )
        assert torch.equal(x[j], normalised(alone)[0])
    assert torch.equal(y, data.train_labels[[5, 5, 7]])


def test_without_augmentation_images_are_as_stored() -> None:
    data = image_set()
    x, _ = data.train_batch(np.arange(20), np.zeros(20, int), device=CPU, augmentation=None)
    assert torch.equal(x, normalised(data.train_images))


def test_stored_images_never_change() -> None:
    data = image_set()
    before = data.train_images.clone()
    x, _ = data.train_batch(np.arange(20), np.zeros(20, int), device=CPU, augmentation=None)
    x.fill_(0)
    assert torch.equal(data.train_images, before)


@pytest.mark.parametrize("augmented", [False, True])
def test_empty_batch(augmented: bool) -> None:
    data = image_set()
    nothing = np.empty(0, np.int64)
    rule = data.augmentation(0) if augmented else None
    x, y = data.train_batch(nothing, nothing, device=CPU, augmentation=rule)
    assert x.shape == (0, 3, 8, 8)
    assert y.shape == (0,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": torch.arange(19) % 5}, "20 training images and 19 labels"),
        ({"test_labels": torch.full((10,), 5)}, "test labels from 5 to 5; wanted 0 to 4"),
        ({"test_labels": torch.full((10,), -1)}, "test labels from -1 to -1"),
        (
            {"train_images": torch.empty(0, 3, 8, 8), "train_labels": torch.empty(0)},
            "0 training images",
        ),
    ],
)
def test_sets_that_do_not_fit_together_are_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=f"small: {message}"):
        image_set(**changes)


def test_vectors_pass_through_unchanged() -> None:
    vectors = torch.randn(6, 4)
    data = VectorSet(
        name="small",
        classes=3,
        train_vectors=vectors[:4],
        train_labels=torch.tensor([0, 1, 2, 0]),
        test_vectors=vectors[4:],
        test_labels=torch.tensor([1, 2]),
    )
    assert (data.train_size, data.test_size, data.channels, data.image_size) == (4, 2, 4, 0)
    assert data.augmentation(1) is None
    x, y = data.train_batch(np.array([2, 0]), np.array([0, 1]), device=CPU, augmentation=None)
    assert torch.equal(x, vectors[[2, 0]])
    assert y.tolist() == [2, 0]
    assert torch.equal(data.test_batch(np.array([1]), device=CPU)[0], vectors[[5]])
    rule = image_set().augmentation(1)
    with pytest.raises(ValueError, match="vectors are used as they are"):
        data.train_batch(np.array([2]), np.array([0]), device=CPU, augmentation=rule)


def test_sets_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        image_set().classes = 3
