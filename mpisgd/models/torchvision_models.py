"""The one place that asks for torchvision, which is optional."""

from __future__ import annotations

from typing import Any


def torchvision_models(name: str) -> Any:
    """The module torchvision.models. Raises ModuleNotFoundError with the remedy without it."""
    try:
        import torchvision.models
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"model: {name} is built from torchvision, which is not installed; "
            'pip install "mpisgd[vision]", or choose --model resnet20'
        ) from error
    return torchvision.models
