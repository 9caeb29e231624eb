"""DataParallel: the laws of synchronous training, at any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import mpisgd
from mpisgd.parameters import check_param_hash
from tests.training import CLASSES, alone, data, distance, make, network, parts, train

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("shares", ["equal", "unequal", "last"])
@pytest.mark.parametrize("collective", ["plain", "stripes"])
def test_n_ranks_equal_one_rank_at_32_bits(world, collective, shares, known):
    """Law 6."""
    model, _, losses = train(world, collective=collective, shares=shares, known=known)
    reference, expected = alone()
    assert distance(model, reference) <= 1e-5
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.parametrize("quant", [1, 32])
def test_one_rank_is_plain_torch_bit_for_bit(world, quant):
    """Law 5, on a world of one in each rank."""
    with mpisgd.World(world.comm.Split(world.rank)) as single:
        model, learner, _ = train(single, quant=quant)
    reference, _ = alone()
    assert mpisgd.param_hash(model) == mpisgd.param_hash(reference)
    assert learner.wire.bytes == learner.wire.messages == 0


@pytest.mark.parametrize("shares", ["equal", "unequal", "last"])
@pytest.mark.parametrize("quant", [1, 32])
def test_ranks_stay_bit_identical(world, quant, shares):
    """Law 4."""
    model, learner, losses = train(world, steps=30, quant=quant, shares=shares, warmup=24 * 5)
    check_param_hash(model, world)
    assert learner.samples_seen == 24 * 30
    assert losses[-1] < losses[0] + 1


def test_same_seed_same_bits(world):
    hashes = {mpisgd.param_hash(train(world, quant=1, warmup=100)[0]) for _ in range(2)}
    assert len(hashes) == 1


def test_initial_state_is_rank_0s(world):
    model = nn.Sequential(network(seed=world.rank), nn.BatchNorm1d(CLASSES))
    model[1].running_mean += world.rank
    model[1].num_batches_tracked += world.rank
    make(world, model)
    check_param_hash(model, world)
    assert float(model[1].running_mean.sum()) == 0
    assert int(model[1].num_batches_tracked) == 0


def test_optimizer_state_is_rank_0s(world):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * (1 + world.rank))
    for _ in range(1 + world.rank):
        model(data(0, 4)[0]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    mpisgd.DataParallel(model, optimizer, world=world)
    first = next(iter(model.parameters()))
    assert int(optimizer.state[first]["step"]) == 1
    assert optimizer.param_groups[0]["lr"] == 0.01


@pytest.mark.parametrize("quant", [1, 32])
def test_ranks_with_different_numbers_of_batches_end_together(world, quant):
    model = network()
    learner = make(world, model, quant=quant)
    batches = max(1, 7 - 2 * world.rank)
    for step in range(batches):
        x, y = data(100 * world.rank + step, 6)
        learner.backward(nn.functional.cross_entropy(model(x), y), samples=6)
        learner.step()
    learner.finish()
    expected = 6 * sum(max(1, 7 - 2 * rank) for rank in range(world.size))
    assert learner.samples_seen == expected
    assert learner.steps == 7
    check_param_hash(model, world)


def test_a_step_without_any_sample_does_nothing(world):
    model = network()
    learner = make(world, model, quant=1)
    before = mpisgd.param_hash(model)
    learner.backward(None, samples=0)
    assert learner.step() is False
    assert mpisgd.param_hash(model) == before
    assert (learner.steps, learner.skipped_steps, learner.samples_seen) == (0, 0, 0)


def test_an_empty_batch_may_bring_a_nan_loss(world):
    model = network()
    learner = make(world, model)
    x, y = data(0, 12)
    take = slice(0, 12) if world.rank == world.size - 1 else slice(0, 0)
    loss = nn.functional.cross_entropy(model(x[take]), y[take])  # NaN where the batch is empty
    learner.backward(loss, samples=len(x[take]))
    assert learner.step()
    check_param_hash(model, world)


def test_two_learners_on_one_world(world):
    """As in a GAN: their steps interleave in any order that is the same on all ranks."""
    models = [network(seed) for seed in (0, 1)]
    learners = [make(world, model, quant=q) for model, q in zip(models, (1, 32), strict=True)]
    x, y = data(0, 12)
    mine = parts(12, world.size, "equal")[world.rank]
    for _ in range(3):
        for model, learner in zip(models, learners, strict=True):
            loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
            learner.backward(loss, samples=len(x[mine]))
        for learner in reversed(learners):
            learner.step()
    for model in models:
        check_param_hash(model, world)


@pytest.mark.parametrize("bucket_mb", [0.001, 0.01, None])
def test_buckets_do_not_change_the_sum(world, bucket_mb):
    model, _, _ = train(world, steps=5, collective="stripes", bucket_mb=bucket_mb)
    reference, _ = alone(steps=5)
    assert distance(model, reference) <= 1e-5
    check_param_hash(model, world)


def test_wire_bytes_equal_the_formula(world):
    """Law 7, with raw and coded tensors in one message."""
    _, learner, _ = train(world, steps=4, quant=1, known=True)
    n = world.size
    raw = 64 + 50 + 10 + 500
    payload = 4 * raw + sum(
        8 * -(-numel // 512) + sum(-(-min(512, numel - at) // 8) for at in range(0, numel, 512))
        for numel in (80 * 64, 64 * 50)
    )
    assert learner.payload_bytes(1) == payload
    assert learner.payload_bytes(32) == 4 * (raw + 80 * 64 + 64 * 50)
    total = int(world.sum(np.array([learner.wire.bytes]))[0])
    assert total == (4 * (2 * (n - 1) * payload + 64 * n * (n - 1)) if n > 1 else 0)
    assert learner.wire.messages == (4 * 2 * (n - 1))


def test_state_dict_resumes_bit_for_bit(world):
    def go(model, learner, steps):
        for step in steps:
            x, y = data(step, 24)
            mine = parts(24, world.size, "equal")[world.rank]
            loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
            learner.backward(loss, samples=len(x[mine]))
            learner.step()

    whole = network()
    go(whole, make(world, whole, quant=1, warmup=48), range(10))
    first = network()
    one = make(world, first, quant=1, warmup=48)
    go(first, one, range(5))
    second = network(seed=9)
    second.load_state_dict(first.state_dict())
    two = make(world, second, quant=1, warmup=48)
    two.optimizer.load_state_dict(one.optimizer.state_dict())
    two.load_state_dict(one.state_dict())
    go(second, two, range(5, 10))
    assert mpisgd.param_hash(second) == mpisgd.param_hash(whole)
