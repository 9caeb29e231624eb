"""ResNet-20 ... 110 for CIFAR-10 with the shortcuts of CNTK's example.

K. He et al., arXiv 1512.03385, section 4.2, but with option B: where a stage halves the image, the
shortcut is a 1x1 convolution of stride 2 with batch norm, as in CNTK's
Examples/Image/Classification/ResNet/Python/resnet_models.py. Depth 6n + 2: 272,474 parameters in 65
tensors at n = 3 and 10 classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .spec import ModelSpec


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_in", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two 3x3 convolutions and the shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """`stride` 2 halves the image; the shortcut then is a convolution, else the identity."""
        super().__init__()
        self.first = _conv_bn(inputs, outputs, 3, stride)
        self.second = _conv_bn(outputs, outputs, 3, 1)
        self.shortcut: nn.Module = (
            nn.Identity() if stride == 1 else _conv_bn(inputs, outputs, 1, stride)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(m, inputs, s, s) -> (m, outputs, s / stride, s / stride)."""
        y = self.second(F.relu(self.first(x)))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """A convolution, three stages of n blocks with 16, 32, 64 channels, a mean, a dense layer."""

    def __init__(self, n: int, classes: int, channels: int) -> None:
        """`n` blocks a stage."""
        super().__init__()
        self.stem = _conv_bn(channels, 16, 3, 1)
        blocks = []
        inputs = 16
        for outputs in (16, 32, 64):
            for i in range(n):
                stride = 2 if i == 0 and outputs != 16 else 1
                blocks.append(Block(inputs, outputs, stride))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.dense = nn.Linear(inputs, classes)
        nn.init.normal_(self.dense.weight, std=0.01)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(m, channels, s, s) -> logits (m, classes)."""
        y = self.blocks(F.relu(self.stem(x)))
        logits: torch.Tensor = self.dense(y.mean((2, 3)))
        return logits


def _spec(n: int) -> ModelSpec:
    return ModelSpec(make=lambda classes, channels: ResNet(n, classes, channels))


resnet20 = _spec(3)
resnet32 = _spec(5)
resnet44 = _spec(7)
resnet56 = _spec(9)
resnet110 = _spec(18)
