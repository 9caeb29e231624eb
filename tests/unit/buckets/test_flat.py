"""Gradients in and out of the flat buffer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mpisgd.buckets import Layout
from mpisgd.buckets.flat import Bucket


def make(dtype=torch.float32):
    torch.manual_seed(3)
    conv = nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last).to(dtype))
    named = [("empty", nn.Parameter(torch.zeros(0, 3))), ("conv", conv)]
    named.append(("scalar", nn.Parameter(torch.randn((), dtype=dtype))))
    layout = Layout([(name, tuple(p.shape)) for name, p in named], min_numel=8)
    return named, Bucket(layout, named)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_round_trip_is_exact_and_keeps_the_memory_format(dtype):
    named, bucket = make(dtype)
    gradients = {id(p): torch.randn_like(p) for _, p in named}
    bucket.load(gradients, 1.0)
    conv = gradients[id(named[1][1])]
    np.testing.assert_array_equal(bucket.values[1:], conv.float().reshape(-1).numpy())
    bucket.store({id(p) for _, p in named})
    for _, parameter in named:
        assert parameter.grad.dtype == parameter.dtype
        assert torch.equal(parameter.grad, gradients[id(parameter)])
    assert named[1][1].grad.is_contiguous(memory_format=torch.channels_last)


def test_factor_is_rounded_to_float32_first():
    named, bucket = make()
    gradient = torch.randn(4, 3, 2, 2)
    bucket.load({id(named[1][1]): gradient}, 1 / 3)
    expected = gradient.numpy().reshape(-1) * np.float32(1 / 3)
    np.testing.assert_array_equal(bucket.values[1:], expected)
    assert bucket.values[0] == 0  # the scalar has no gradient


def test_untouched_parameters_get_no_gradient():
    named, bucket = make()
    for _, parameter in named:
        parameter.grad = torch.ones_like(parameter)
    bucket.store({id(named[2][1])})
    assert named[1][1].grad is None
    assert named[2][1].grad is not None


def test_gradients_never_alias_the_bucket():
    named, bucket = make()
    bucket.load({id(p): torch.ones_like(p) for _, p in named}, 1.0)
    bucket.store({id(p) for _, p in named})
    bucket.values[:] = 7
    assert all((p.grad == 1).all() for _, p in named)
    named[1][1].grad.zero_()
    assert (bucket.values == 7).all()
