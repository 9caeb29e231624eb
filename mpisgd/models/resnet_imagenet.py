"""torchvision's ResNet-18 and -50 for small images: a 3x3 stem of stride 1 and no maximum after it.

The stem is the usual change for 32x32 (kuangliu/pytorch-cifar). 11,173,962 and 23,520,842
parameters at 10 classes.
"""

from __future__ import annotations

from torch import nn

from .spec import ModelSpec
from .torchvision_models import torchvision_models


def _make(name: str, classes: int, channels: int) -> nn.Module:
    model: nn.Module = getattr(torchvision_models(name), name)(num_classes=classes)
    stem = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1 = stem
    model.maxpool = nn.Identity()
    return model


resnet18 = ModelSpec(make=lambda classes, channels: _make("resnet18", classes, channels))
resnet50 = ModelSpec(make=lambda classes, channels: _make("resnet50", classes, channels))
