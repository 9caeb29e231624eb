"""VGG-16: torchvision's convolutions, a head for 32x32 images, 33,638,218 parameters.

K. Simonyan, A. Zisserman, arXiv 1409.1556, configuration D, without batch norm. After five 2x2
maxima a 32x32 image is one point of 512 channels; larger ones are averaged to one.
"""

from __future__ import annotations

from torch import nn

from .spec import ModelSpec
from .torchvision_models import torchvision_models


def _make(classes: int, channels: int) -> nn.Module:
    vgg = torchvision_models("vgg16").vgg
    features = vgg.make_layers(vgg.cfgs["D"])
    if channels != 3:
        features[0] = nn.Conv2d(channels, 64, 3, padding=1)
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, classes),
    )
    model = nn.Sequential(features, head)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            assert module.bias is not None, "torchvision's VGG has biases"
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
    return model


vgg16 = ModelSpec(make=_make, smallest_image=32)
