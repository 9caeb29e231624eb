"""The published copy: the same on all ranks, with statistics of all ranks' samples together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mpisgd.parameters import check_param_hash, param_hash
from mpisgd.sync.statistics import PublishedModel, statistics_of

pytestmark = pytest.mark.mpi


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3)
    )


def samples(rank: int, count: int = 24) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 + rank)
    # Means far from 0: a difference of squares would lose the variance.
    return torch.randn(count, 3, 4, 4, generator=generator) + 1000 * rank


def trained(rank: int) -> nn.Module:
    """After one training batch with momentum 1 the running statistics are the batch's own."""
    model = net()
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = 1.0
    model(samples(rank))
    return model


def test_statistics_are_those_of_all_samples_together(world):
    model = trained(world.rank)
    published = PublishedModel(model, world).refill()
    means = [[m.double().numpy() for m, _ in statistics_of(trained(r))] for r in range(world.size)]
    variances = [
        [v.double().numpy() for _, v in statistics_of(trained(r))] for r in range(world.size)
    ]
    for layer, (mean, variance) in enumerate(statistics_of(published)):
        ours = np.stack([rank[layer] for rank in means])
        spread = np.stack([rank[layer] for rank in variances])
        np.testing.assert_allclose(mean, ours.mean(0), rtol=1e-6)
        np.testing.assert_allclose(variance, spread.mean(0) + ours.var(0), rtol=1e-6)


def test_copies_are_equal_and_the_model_is_left_alone(world):
    model = trained(world.rank)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    copied = PublishedModel(model, world)
    published = copied.refill()
    world.check_same("copies", [(k, str(v.tolist())) for k, v in published.state_dict().items()])
    assert not published.training
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert check_param_hash(published, world) == param_hash(model)


def test_one_rank_publishes_its_own_bits(world):
    model = trained(0)  # the same statistics on all ranks
    published = PublishedModel(model, world).refill()
    for name, value in published.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-6, atol=0)
        if world.size == 1:
            assert torch.equal(value, model.state_dict()[name])


def test_refill_follows_the_model(world):
    model = net()
    copied = PublishedModel(model, world)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert param_hash(copied.refill()) == param_hash(model)


def test_from_main_publishes_rank_0(world):
    model = trained(world.rank)
    with torch.no_grad():
        model[0].weight.fill_(float(world.rank + 1))
    published = PublishedModel(model, world, from_main=True).refill()
    expected = trained(0)
    assert torch.equal(published[0].weight, torch.ones_like(published[0].weight))
    for (mean, variance), (m0, v0) in zip(
        statistics_of(published), statistics_of(expected), strict=True
    ):
        assert torch.equal(mean, m0)
        assert torch.equal(variance, v0)


def test_a_model_without_statistics(world):
    model = nn.Linear(3, 2)
    assert param_hash(PublishedModel(model, world).refill()) == param_hash(model)
