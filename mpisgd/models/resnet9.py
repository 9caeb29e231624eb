"""ResNet-9 of D. Page's cifar10-fast: 6,573,120 parameters in 25 tensors at 10 classes.

Davidcpage/cifar10-fast, commit f79e8b8 ("How to train your ResNet", part 4). torch's default
initialisation, batch norm scales at 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .spec import ModelSpec

LOGIT_SCALE = 0.125


def _conv(inputs: int, outputs: int, *, pool: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


class Residual(nn.Module):
    """Two convolutions around which the input passes; nothing follows the sum."""

    def __init__(self, width: int) -> None:
        """`width` channels in, out and between."""
        super().__init__()
        self.convs = nn.Sequential(_conv(width, width), _conv(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(m, width, s, s) -> the same shape."""
        y: torch.Tensor = x + self.convs(x)
        return y


class ResNet9(nn.Module):
    """Eight convolutions, three 2x2 maxima, a global maximum, a dense layer without bias."""

    def __init__(self, classes: int, channels: int) -> None:
        """Fresh parameters."""
        super().__init__()
        self.features = nn.Sequential(
            _conv(channels, 64),
            _conv(64, 128, pool=True),
            Residual(128),
            _conv(128, 256, pool=True),
            _conv(256, 512, pool=True),
            Residual(512),
        )
        self.linear = nn.Linear(512, classes, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(m, channels, s, s), s >= 8 -> logits (m, classes)."""
        y = F.adaptive_max_pool2d(self.features(x), 1).flatten(1)
        logits: torch.Tensor = self.linear(y) * LOGIT_SCALE
        return logits


resnet9 = ModelSpec(make=ResNet9, smallest_image=8)
