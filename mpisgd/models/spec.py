"""What is known about a model before it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """How to build a model, and the data that it can read."""

    make: Callable[[int, int], nn.Module]  # (classes, channels) -> model
    kind: str = "images"  # or "vectors"
    smallest_image: int = 1  # height and width in pixels below which its layers have no output

    def check(self, name: str, *, channels: int, image_size: int) -> None:
        """Raise ValueError unless `name` can read such samples; image_size 0: vectors."""
        came = (
            f"images of {channels}x{image_size}x{image_size}"
            if image_size
            else f"vectors of {channels}"
        )
        if self.kind == "vectors" and image_size:
            raise ValueError(
                f"model: {name} reads vectors; the data are {came}; use --data synthetic, or a "
                "model for "
                "images such as --model resnet20"
            )
        if self.kind == "images" and not image_size:
            raise ValueError(
                f"model: {name} reads images; the data are {came}; use --data cifar10, or --model "
                "speechdnn"
            )
        if 0 < image_size < self.smallest_image:
            raise ValueError(
                f"model: {name} reads images of at least "
                f"{self.smallest_image}x{self.smallest_image}; the "
                f"data are {came}; use --data cifar10, or a smaller model such as --model resnet20"
            )
