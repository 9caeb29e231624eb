"""Models by name.

Importing this package imports neither torch nor torchvision: a model is imported when it is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpisgd.registry import Registry

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MODELS", "build", "has_batch_norm", "kind_of"]

# name -> the ModelSpec that builds it
MODELS: Registry[str] = Registry(
    {
        "resnet20": "mpisgd.models.resnet_cifar:resnet20",
        "resnet32": "mpisgd.models.resnet_cifar:resnet32",
        "resnet44": "mpisgd.models.resnet_cifar:resnet44",
        "resnet56": "mpisgd.models.resnet_cifar:resnet56",
        "resnet110": "mpisgd.models.resnet_cifar:resnet110",
        "resnet9": "mpisgd.models.resnet9:resnet9",
        "resnet18": "mpisgd.models.resnet_imagenet:resnet18",
        "resnet50": "mpisgd.models.resnet_imagenet:resnet50",
        "vgg16": "mpisgd.models.vgg:vgg16",
        "speechdnn": "mpisgd.models.speech:speechdnn",
    }
)


def build(name: str, *, classes: int, channels: int, image_size: int) -> nn.Module:
    """A model with fresh parameters on the CPU, drawn from torch's default generator.

    Args:
        name: A name of MODELS.
        classes: Number of outputs.
        channels: Channels of an image, or values of a vector.
        image_size: Height and width of an image in pixels; 0: the input is a vector.

    Raises:
        ValueError: for an unknown name, or data that this model cannot read.
        ModuleNotFoundError: if the model needs torchvision and it is not installed, with the
            remedy.
    """
    if name not in MODELS:
        raise ValueError(f"model: {name!r} is not known; choose one of {', '.join(MODELS)}")
    spec = MODELS[name]
    spec.check(name, channels=channels, image_size=image_size)
    model: nn.Module = spec.make(classes, channels)
    return model


def kind_of(name: str) -> str:
    """What a model reads: "images" or "vectors". Raises KeyError for an unknown name."""
    kind: str = MODELS[name].kind
    return kind


def has_batch_norm(model: nn.Module) -> bool:
    """Whether the model normalises over the batch, and so needs two samples of each rank."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(module, _BatchNorm) for module in model.modules())
