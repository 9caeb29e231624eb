"""Which parameters are exchanged, and their hash."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn

from mpisgd.parameters import exchanged_parameters, param_hash


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 3)
        self.third = nn.Linear(3, 4)
        self.third.weight = self.first.weight


def names(model, optimizer):
    return [name for name, _ in exchanged_parameters(model, optimizer)]


def test_reverse_registration_order_with_tied_weights_once():
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = ["third.bias", "second.bias", "second.weight", "first.bias", "first.weight"]
    assert names(model, optimizer) == expected


def test_order_does_not_depend_on_the_optimizer_groups():
    model = Tied()
    groups = [{"params": [model.second.bias]}, {"params": [model.first.weight], "lr": 1.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    assert names(model, optimizer) == ["second.bias", "first.weight"]


def test_frozen_parameters_stay_out_and_foreign_ones_come_first():
    model = Tied()
    model.first.requires_grad_(False)
    extra = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([*model.parameters(), extra], lr=0.1)
    assert names(model, optimizer)[0].startswith("optimizer.group0[")
    assert not any(name.startswith("first") for name in names(model, optimizer))


def test_nothing_to_exchange_is_an_error():
    model = Tied().requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires grad"):
        exchanged_parameters(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_inexact_dtypes_are_refused_by_name(dtype):
    model = nn.ParameterDict({"odd": nn.Parameter(torch.zeros(2, 2, dtype=dtype))})
    with pytest.raises(TypeError, match=r"parameter odd: dtype is"):
        exchanged_parameters(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_param_hash_is_what_the_documents_say():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    digests = [
        hashlib.sha256(p.detach().numpy().astype("<f4").tobytes()).digest()[:8]
        for p in model.parameters()
    ]
    assert param_hash(model) == hashlib.sha256(b"".join(digests)).hexdigest()[:16]


def test_param_hash_ignores_memory_format_and_buffers_but_not_values():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    before = param_hash(model)
    model.to(memory_format=torch.channels_last)
    model[1].running_mean += 1
    assert param_hash(model) == before
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] += 1
    assert param_hash(model) != before


def test_param_hash_of_half_precision_and_empty_parameters():
    model = nn.ParameterList([nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.ones(2))])
    half = param_hash(model.bfloat16())
    assert half != param_hash(model.half())
