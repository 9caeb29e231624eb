"""What each definition fixes beyond its size: layers, shortcuts, initialisation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mpisgd import models


def build(name: str) -> nn.Module:
    torch.manual_seed(1)
    if name == "speechdnn":
        return models.build(name, classes=9304, channels=440, image_size=0)
    return models.build(name, classes=10, channels=3, image_size=32)


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [m for m in model.modules() if isinstance(m, nn.Conv2d)]


@pytest.mark.parametrize(("name", "depth"), [("resnet20", 20), ("resnet56", 56)])
def test_cifar_resnets_have_two_convolutional_shortcuts(name: str, depth: int) -> None:
    every = convolutions(build(name))
    shortcuts = [c for c in every if c.kernel_size == (1, 1)]
    assert [(c.in_channels, c.out_channels, c.stride) for c in shortcuts] == [
        (16, 32, (2, 2)),
        (32, 64, (2, 2)),
    ]
    assert len(every) - len(shortcuts) + 1 == depth
    assert all(c.bias is None for c in every)


def test_cifar_resnet_is_he_normal_with_a_small_dense_layer() -> None:
    model = build("resnet110")
    for conv in convolutions(model):
        fan_in = conv.in_channels * conv.kernel_size[0] ** 2
        expected = (2 / fan_in) ** 0.5
        tolerance = 4 * expected / (2 * conv.weight.numel()) ** 0.5
        assert abs(conv.weight.std().item() - expected) < tolerance
        assert abs(conv.weight.mean().item()) < 4 * expected / conv.weight.numel() ** 0.5
    [dense] = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert abs(dense.weight.std().item() - 0.01) < 0.002
    assert not dense.bias.any()


def test_cifar_resnet_equals_its_definition_by_hand() -> None:
    """The block's algebra: relu(bn(conv(relu(bn(conv(x))))) + x), a global mean, a dense layer."""
    model = build("resnet20").double().eval()
    state = model.state_dict()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)

    def conv_bn(y: torch.Tensor, prefix: str, stride: int = 1) -> torch.Tensor:
        weight = state[f"{prefix}.0.weight"]
        y = nn.functional.conv2d(y, weight, stride=stride, padding=weight.shape[2] // 2)
        return y / (1 + 1e-5) ** 0.5  # fresh running statistics: mean 0, variance 1

    y = conv_bn(x, "stem").relu()
    for i in range(9):
        stride = 2 if i in (3, 6) else 1
        z = conv_bn(conv_bn(y, f"blocks.{i}.first", stride).relu(), f"blocks.{i}.second")
        y = (z + (conv_bn(y, f"blocks.{i}.shortcut", 2) if stride == 2 else y)).relu()
    expected = y.mean((2, 3)) @ state["dense.weight"].T + state["dense.bias"]
    torch.testing.assert_close(model(x), expected)


def test_resnet9_has_no_bias_and_an_eighth_of_the_logits() -> None:
    model = build("resnet9")
    assert len(convolutions(model)) == 8
    linear = model.linear
    assert linear.bias is None
    seen = []
    linear.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        logits = model.eval()(torch.randn(2, 3, 32, 32))
    assert torch.equal(logits, seen[0] * 0.125)


def test_resnet9_keeps_the_image_sizes_of_its_source() -> None:
    model = build("resnet9").eval()
    shapes = []
    for layer in model.features:
        layer.register_forward_hook(lambda module, args, y: shapes.append(tuple(y.shape[1:])))
    with torch.no_grad():
        model(torch.randn(1, 3, 32, 32))
    assert shapes == [(64, 32, 32), (128, 16, 16), (128, 16, 16), (256, 8, 8), *[(512, 4, 4)] * 2]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_torchvision_resnets_keep_small_images_whole_in_the_stem(name: str) -> None:
    model = build(name).eval()
    assert (model.conv1.kernel_size, model.conv1.stride) == ((3, 3), (1, 1))
    seen = []
    model.layer1.register_forward_hook(lambda module, args, output: seen.append(output.shape[2:]))
    with torch.no_grad():
        model(torch.randn(1, 3, 32, 32))
    assert seen == [(32, 32)]


def test_vgg16_layers() -> None:
    model = build("vgg16")
    assert [c.out_channels for c in convolutions(model)] == [
        *[64] * 2,
        *[128] * 2,
        *[256] * 3,
        *[512] * 6,
    ]
    dense = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in dense] == [
        (512, 4096),
        (4096, 4096),
        (4096, 10),
    ]


def test_speechdnn_layers() -> None:
    dense = [m for m in build("speechdnn").modules() if isinstance(m, nn.Linear)]
    widths = [dense[0].in_features, *(m.out_features for m in dense)]
    assert widths == [440, *[2048] * 7, 9304]
