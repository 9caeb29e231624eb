"""All models: sizes, shapes, initialisation, and that each can learn."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mpisgd import models
from mpisgd.models import MODELS

# name: (parameters, tensors) at 10 classes and 3 channels, or at 9,304 classes and 440 values
SIZES = {
    "resnet20": (272_474, 65),
    "resnet32": (466_906, 101),
    "resnet44": (661_338, 137),
    "resnet56": (855_770, 173),
    "resnet110": (1_730_714, 335),
    "resnet9": (6_573_120, 25),
    "resnet18": (11_173_962, 62),
    "resnet50": (23_520_842, 161),
    "vgg16": (33_638_218, 32),
    "speechdnn": (45_145_176, 16),
}
# One of each kind: the deeper ones are made of the same blocks.
KINDS = ["resnet20", "resnet9", "resnet18", "vgg16", "speechdnn"]


def build(name: str, *, classes: int | None = None) -> nn.Module:
    if models.kind_of(name) == "vectors":
        return models.build(name, classes=classes or 9304, channels=440, image_size=0)
    return models.build(name, classes=classes or 10, channels=3, image_size=32)


def inputs(name: str, count: int, image_size: int = 32) -> torch.Tensor:
    shape = (440,) if models.kind_of(name) == "vectors" else (3, image_size, image_size)
    return torch.randn(count, *shape)


def test_every_registered_model_is_tested() -> None:
    assert set(SIZES) == set(MODELS)


@pytest.mark.parametrize("name", list(SIZES))
def test_sizes(name: str) -> None:
    parameters = list(build(name).parameters())
    assert (sum(p.numel() for p in parameters), len(parameters)) == SIZES[name]
    assert all(p.requires_grad and p.dtype == torch.float32 for p in parameters)


@pytest.mark.parametrize("name", list(SIZES))
def test_logits(name: str) -> None:
    model = build(name, classes=7).eval()
    with torch.no_grad():
        logits = model(inputs(name, 2))
    assert logits.shape == (2, 7)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("name", [n for n in KINDS if n != "speechdnn"])
@pytest.mark.parametrize("image_size", [8, 28, 40])
def test_other_image_sizes_work_or_are_refused(name: str, image_size: int) -> None:
    options = {"classes": 10, "channels": 3, "image_size": image_size}
    if name == "vgg16" and image_size < 32:
        with pytest.raises(ValueError, match=f"vgg16 reads images of at least 32x32.*{image_size}"):
            models.build(name, **options)
        return
    model = models.build(name, **options).eval()
    with torch.no_grad():
        assert model(inputs(name, 2, image_size)).shape == (2, 10)


@pytest.mark.parametrize("name", ["resnet20", "resnet9", "resnet18", "vgg16"])
def test_one_channel(name: str) -> None:
    model = models.build(name, classes=10, channels=1, image_size=32).eval()
    with torch.no_grad():
        assert model(torch.randn(2, 1, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("name", list(SIZES))
def test_the_seed_decides_the_parameters(name: str) -> None:
    def first(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(build(name).state_dict().values())

    one, again, other = first(1), first(1), first(2)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    drawn = [not torch.equal(a, b) for a, b in zip(one, other, strict=True)]
    assert sum(drawn) >= sum(p.dim() > 1 for p in one)  # every matrix and every filter is drawn


@pytest.mark.parametrize("name", KINDS)
def test_a_few_steps_lower_the_loss(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, classes=4)
    # Dropout would compare the losses of different networks.
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    x = inputs(name, 8, 32 if name == "vgg16" else 16)
    y = torch.arange(8) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("name", list(SIZES))
def test_has_batch_norm(name: str) -> None:
    assert models.has_batch_norm(build(name)) == name.startswith("resnet")
    assert models.kind_of(name) == ("vectors" if name == "speechdnn" else "images")


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'nosuch' is not known; choose one of resnet20, resnet32"):
        models.build("nosuch", classes=10, channels=3, image_size=32)
    with pytest.raises(KeyError):
        models.kind_of("nosuch")


def test_vectors_and_images_are_not_confused() -> None:
    with pytest.raises(ValueError, match="speechdnn reads vectors; the data are images of 3x32x32"):
        models.build("speechdnn", classes=10, channels=3, image_size=32)
    with pytest.raises(ValueError, match="resnet20 reads images; the data are vectors of 440"):
        models.build("resnet20", classes=10, channels=440, image_size=0)
    with pytest.raises(ValueError, match="resnet9 reads images of at least 8x8"):
        models.build("resnet9", classes=10, channels=3, image_size=7)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg16"])
def test_missing_torchvision_has_a_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(module: str, *rest: Any) -> Any:
        if module.split(".")[0] == "torchvision":
            raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision")
        return real(module, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "mpisgd\[vision\]"'):
        models.build(name, classes=10, channels=3, image_size=32)
    models.build("resnet20", classes=10, channels=3, image_size=32)
