"""The warm start: when it ends, and what is exchanged until then."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import mpisgd
from mpisgd.parameters import check_param_hash
from tests.training import alone, data, make, network, parts, train

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("warmup", [0, 1, 24, 25, 100, 10_000])
def test_the_switch_comes_with_the_first_step_that_starts_warm(world, warmup):
    model = network()
    learner = make(world, model, quant=1, warmup=warmup)
    for step in range(6):
        bits = learner.bits_on_wire
        quantized = step * 24 >= warmup and world.size > 1
        assert bits == (1 if quantized else 32)
        x, y = data(step, 24)
        mine = parts(24, world.size, "equal")[world.rank]
        learner.backward(nn.functional.cross_entropy(model(x[mine]), y[mine]), samples=len(x[mine]))
        owed = sum(float(residual.abs().sum()) for residual in learner.residuals)
        if step * 24 < warmup:
            assert owed == 0  # quantization starts from zero residuals
        learner.step()
    check_param_hash(model, world)


def test_before_the_switch_training_is_32_bit_training(world):
    warm, _, _ = train(world, steps=5, quant=1, warmup=10_000)
    plain, _, _ = train(world, steps=5, quant=32)
    assert mpisgd.param_hash(warm) == mpisgd.param_hash(plain)


def test_replicated_warm_start_is_single_process_training_without_messages(world):
    model = network(seed=world.rank)
    learner = make(world, model, quant=1, warmup=24 * 4, warmup_mode="replicate")
    for step in range(8):
        rank, size = learner.shard
        assert (rank, size) == ((0, 1) if step < 4 else (world.rank, world.size))
        x, y = data(step, 24)
        x, y = x[rank::size], y[rank::size]
        learner.backward(nn.functional.cross_entropy(model(x), y), samples=len(x))
        learner.step()
        if step == 3:
            assert learner.wire.bytes == 0
            reference, _ = alone(steps=4)
            assert mpisgd.param_hash(model) == mpisgd.param_hash(reference)
    assert learner.samples_seen == 24 * 8
    check_param_hash(model, world)


def test_replicated_warm_start_draws_rank_0s_dropout(world):
    model = nn.Sequential(network(), nn.Dropout(0.5))
    torch.manual_seed(100 + world.rank)
    learner = make(world, model, quant=1, warmup=48, warmup_mode="replicate")
    draws = []
    for step in range(4):
        draws.append(float(torch.rand(())))
        x, y = data(step, 24)
        rank, size = learner.shard
        x, y = x[rank::size], y[rank::size]
        learner.backward(nn.functional.cross_entropy(model(x), y), samples=len(x))
        learner.step()
    totals = world.sum(np.array(draws))
    np.testing.assert_allclose(totals[:2], np.array(draws[:2]) * world.size)
    if world.size > 1:
        assert abs(totals[3] - draws[3] * world.size) > 1e-9
    check_param_hash(model, world)
