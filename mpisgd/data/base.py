"""What the trainer sees of a data set: sizes, and batches on a device.

Sets live in host memory as they were published (images uint8); cropping, mirroring and normalising
happen a batch at a time on the device that trains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from .augment import Augmentation, shift_and_flip
from .order import Indices

Batch: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"


class AbstractDataset(ABC):
    """A labelled set for classification, with a training and a test part."""

    name: str
    classes: int
    train_labels: torch.Tensor  # (N,) int64
    test_labels: torch.Tensor  # (M,) int64

    @property
    def train_size(self) -> int:
        """Number of training samples."""
        return len(self.train_labels)

    @property
    def test_size(self) -> int:
        """Number of test samples."""
        return len(self.test_labels)

    @property
    @abstractmethod
    def channels(self) -> int:
        """Channels of an image, or values of a vector."""

    @property
    @abstractmethod
    def image_size(self) -> int:
        """Height and width of an image in pixels; 0 where a sample is a vector."""

    @abstractmethod
    def augmentation(self, seed: int) -> Augmentation | None:
        """What to pass to `train_batch` in a run seeded with `seed`; None: no augmentation."""

    @abstractmethod
    def train_batch(
        self,
        indices: Indices,
        sweeps: Indices,
        *,
        device: torch.device,
        augmentation: Augmentation | None,
    ) -> Batch:
        """Training samples on `device`.

        Args:
            indices: (m,) int64, m = 0 allowed, from `order.minibatch`.
            sweeps: (m,) int64, the sweep of each sample: it decides the sample's augmentation.
            device: Where the batch is needed.
            augmentation: `self.augmentation(seed)`, or None to use the samples as they are.

        Returns:
            (x, y): float32 (m, channels, image_size, image_size) or (m, channels), and int64 (m,).
        """

    @abstractmethod
    def test_batch(self, indices: Indices, *, device: torch.device) -> Batch:
        """Test samples on `device`, never augmented: shapes as in `train_batch`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet(AbstractDataset):
    """Square uint8 images in memory."""

    name: str
    classes: int
    train_images: (
        torch.Tensor
    )  # (N, C, H, W) uint8; may be a view that repeats grey over the channels
    train_labels: torch.Tensor
    test_images: torch.Tensor  # (M, C, H, W) uint8
    test_labels: torch.Tensor
    mean: tuple[float, ...]  # one a channel, on the scale of the stored values
    std: tuple[float, ...]
    shift: int  # largest random shift in training, in pixels
    flip: bool  # mirror left-right at random in training
    fill: int  # stored value of what a shift brings in

    def __post_init__(self) -> None:
        """Check that images and labels belong together. Raises ValueError."""
        for part, images, labels in (
            ("training", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            if len(images) == 0 or len(images) != len(labels):
                raise ValueError(
                    f"{self.name}: {len(images)} {part} images and {len(labels)} labels; wanted as "
                    "many "
                    "of both and at least one; get the data again"
                )
            if int(labels.min()) < 0 or int(labels.max()) >= self.classes:
                raise ValueError(
                    f"{self.name}: {part} labels from {int(labels.min())} to {int(labels.max())}; "
                    "wanted "
                    f"0 to {self.classes - 1}; the files are corrupt, get the data again"
                )

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return self.train_images.shape[1]

    @property
    def image_size(self) -> int:
        """Height and width in pixels."""
        return self.train_images.shape[2]

    def augmentation(self, seed: int) -> Augmentation | None:
        """Random shifts and flips by this set's rule."""
        return Augmentation(seed, self.train_size, self.shift, self.flip)

    def train_batch(
        self,
        indices: Indices,
        sweeps: Indices,
        *,
        device: torch.device,
        augmentation: Augmentation | None,
    ) -> Batch:
        """Training images, shifted, mirrored and normalised on `device`."""
        x, y = _rows(self.train_images, self.train_labels, indices, device)
        if augmentation is not None:
            draws = augmentation.draws(sweeps, indices)
            x = shift_and_flip(x, draws, shift=augmentation.shift, fill=self.fill)
        return self._normalised(x), y

    def test_batch(self, indices: Indices, *, device: torch.device) -> Batch:
        """Test images, normalised on `device`."""
        x, y = _rows(self.test_images, self.test_labels, indices, device)
        return self._normalised(x), y

    def _normalised(self, images: torch.Tensor) -> torch.Tensor:
        mean, std = (
            torch.tensor(v, dtype=torch.float32, device=images.device).view(1, -1, 1, 1)
            for v in (self.mean, self.std)
        )
        return images.to(torch.float32).sub_(mean).div_(std)


@dataclass(frozen=True, kw_only=True, eq=False)
class VectorSet(AbstractDataset):
    """Float32 vectors in memory, already on the scale that a model wants."""

    name: str
    classes: int
    train_vectors: torch.Tensor  # (N, D) float32
    train_labels: torch.Tensor
    test_vectors: torch.Tensor  # (M, D) float32
    test_labels: torch.Tensor

    @property
    def channels(self) -> int:
        """Values of a vector."""
        return self.train_vectors.shape[1]

    @property
    def image_size(self) -> int:
        """0: these are no images."""
        return 0

    def augmentation(self, seed: int) -> Augmentation | None:
        """None: vectors are used as they are, whatever the seed."""
        return None

    def train_batch(
        self,
        indices: Indices,
        sweeps: Indices,
        *,
        device: torch.device,
        augmentation: Augmentation | None,
    ) -> Batch:
        """Training vectors, the same in every sweep. Raises ValueError for an augmentation."""
        if augmentation is not None:
            raise ValueError(
                f"{self.name}: got an augmentation; vectors are used as they are; pass "
                "augmentation=dataset.augmentation(seed), which is None here"
            )
        return _rows(self.train_vectors, self.train_labels, indices, device)

    def test_batch(self, indices: Indices, *, device: torch.device) -> Batch:
        """Test vectors."""
        return _rows(self.test_vectors, self.test_labels, indices, device)


def _rows(
    samples: torch.Tensor, labels: torch.Tensor, indices: Indices, device: torch.device
) -> Batch:
    picked = torch.from_numpy(np.ascontiguousarray(indices))
    return samples[picked].to(device), labels[picked].to(device)
