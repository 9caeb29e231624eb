"""What becomes of gradients: clipped, missing, non-finite, scaled, accumulated, of any dtype."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import mpisgd
from mpisgd.parameters import check_param_hash
from tests.training import CLASSES, FEATURES, data, distance, make, network, parts

pytestmark = pytest.mark.mpi


def test_accumulation_is_one_step_on_everything(world):
    """no_sync: the weighted mean of all passes, whatever their sizes."""
    model = network()
    learner = make(world, model)
    x, y = data(0, 40)
    mine = x[world.rank :: world.size], y[world.rank :: world.size]
    cuts = [0, 1, len(mine[0]) // 2, len(mine[0])]
    passes = [slice(a, b) for a, b in itertools.pairwise(cuts)]
    for index, part in enumerate(passes):
        loss = nn.functional.cross_entropy(model(mine[0][part]), mine[1][part])
        if index < len(passes) - 1:
            with learner.no_sync():
                learner.backward(loss, samples=part.stop - part.start)
        else:
            learner.backward(loss, samples=part.stop - part.start)
    assert learner.step()
    reference = network()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    nn.functional.cross_entropy(reference(x), y).backward()
    optimizer.step()
    assert distance(model, reference) <= 1e-6
    assert learner.samples_seen == 40


def test_weights_other_than_samples(world):
    """A loss that is a mean over tokens is weighted by tokens, and counted in samples."""
    model = network()
    learner = make(world, model)
    x, y = data(1, 30)
    mine = parts(30, world.size, "unequal")[world.rank]
    loss = nn.functional.cross_entropy(model(x[mine]), y[mine]) if x[mine].numel() else None
    learner.backward(loss, samples=2 if loss is not None else 0, weight=len(x[mine]))
    learner.step()
    reference = network()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    nn.functional.cross_entropy(reference(x), y).backward()
    optimizer.step()
    assert distance(model, reference) <= 1e-6


def test_clipping_between_wait_and_step_acts_on_the_mean(world):
    model = network()
    learner = make(world, model)
    x, y = data(2, 24)
    mine = parts(24, world.size, "unequal")[world.rank]
    loss = nn.functional.cross_entropy(model(x[mine]), y[mine]) if x[mine].numel() else None
    learner.backward(loss, samples=len(x[mine]))
    assert learner.wait()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    learner.step()
    reference = network()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    nn.functional.cross_entropy(reference(x), y).backward()
    expected = nn.utils.clip_grad_norm_(reference.parameters(), 0.01)
    optimizer.step()
    assert float(norm) == pytest.approx(float(expected), rel=1e-5)
    assert distance(model, reference) <= 1e-6
    check_param_hash(model, world)


class TwoHeads(nn.Module):
    """Only some heads take part in a step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(FEATURES, 64)
        self.heads = nn.ModuleList(nn.Linear(64, CLASSES) for _ in range(3))

    def forward(self, x, head):
        return self.heads[head](torch.relu(self.trunk(x)))


@pytest.mark.parametrize("quant", [1, 32])
def test_heads_chosen_by_rank(world, quant):
    """A gradient that one rank lacks is zeros; one that all lack stays None, as in torch."""
    model = TwoHeads()
    learner = make(world, model, quant=quant)
    x, y = data(3, 24)
    mine = parts(24, world.size, "equal")[world.rank]
    head = world.rank % 2
    before = model.heads[2].weight.clone()
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(x[mine], head), y[mine])
        learner.backward(loss, samples=len(x[mine]))
        assert learner.wait()
        used = range(min(2, world.size))
        for index, layer in enumerate(model.heads):
            assert (layer.weight.grad is not None) == (index in used)
        learner.step()
    assert torch.equal(model.heads[2].weight, before)  # no weight decay either
    check_param_hash(model, world)


def test_what_is_owed_to_an_untouched_tensor_is_not_lost(world):
    """Sums applied + residuals = gradients, also when a head gets no gradient for some steps."""
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    learner = mpisgd.DataParallel(model, optimizer, world=world, quant=1, min_numel=0, column=64)
    start = model.heads[0].weight.detach().clone()
    given = torch.zeros_like(start)
    for step in range(4):
        x, y = data(step, 24)
        mine = parts(24, world.size, "equal")[world.rank]
        head = 0 if step < 2 else 1
        loss = nn.functional.cross_entropy(model(x[mine], head), y[mine])
        learner.backward(loss, samples=len(x[mine]))
        gradient = model.heads[0].weight.grad
        share = torch.zeros_like(start) if gradient is None else gradient.clone()
        given += share * (len(x[mine]) / 24)
        learner.step()
    applied = start - model.heads[0].weight.detach()
    total = torch.from_numpy(world.sum(given.double().numpy()))
    if world.size == 1:
        torch.testing.assert_close(applied.double(), total, rtol=1e-5, atol=1e-6)
        return
    exchange = learner._exchanges[1].exchanges[0]
    piece = next(p for p in exchange.layout.pieces if p.name == "heads.0.weight")
    owed = exchange.residual[piece.start : piece.stop].double().numpy()
    whole = np.zeros(exchange.layout.numel)
    first, last = exchange.layout.column_bounds(world.rank, world.size)
    if last > first:
        at = exchange.layout.raw_numel + int(exchange.layout.starts[first])
        whole[at : at + exchange.owner_residual.numel()] = exchange.owner_residual.numpy()
    owed = world.sum(owed) + world.sum(whole)[piece.start : piece.stop]
    got = applied.double() + torch.from_numpy(owed).view_as(applied)
    torch.testing.assert_close(got, total, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("quant", [1, 32])
def test_a_non_finite_gradient_is_skipped_on_all_ranks(world, quant, bad):
    model = network()
    learner = make(world, model, quant=quant)
    for culprit in range(world.size):
        for broken in (False, True, False):
            x, y = data(culprit, 24)
            mine = parts(24, world.size, "equal")[world.rank]
            loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
            if broken and culprit == world.rank:
                loss = loss * bad
            before = mpisgd.param_hash(model)
            owed = [residual.clone() for residual in learner.residuals]
            learner.backward(loss, samples=len(x[mine]))
            assert learner.step() is not broken
            assert (mpisgd.param_hash(model) == before) == broken
            if broken:
                assert all(map(torch.equal, owed, learner.residuals))
    assert learner.skipped_steps == world.size
    assert learner.samples_seen == 3 * 24 * world.size
    check_param_hash(model, world)


def test_gradient_scaler_follows_the_agreed_verdict(world):
    model = network()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    learner = make(world, model, scaler=scaler)
    reference = network()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scales = []
    for step in range(5):
        x, y = data(step, 24)
        mine = parts(24, world.size, "equal")[world.rank]
        broken = step == 2
        loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
        learner.backward(loss * (float("nan") if broken else 1.0), samples=len(x[mine]))
        assert learner.step() is not broken
        scales.append(scaler.get_scale())
        if not broken:
            optimizer.zero_grad()
            nn.functional.cross_entropy(reference(x), y).backward()
            optimizer.step()
    assert scales == [8.0, 16.0, 8.0, 8.0, 16.0]
    assert distance(model, reference) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("quant", [1, 32])
def test_half_precision_gradients_are_summed_in_fp32_and_rounded_once(world, quant, dtype):
    parameter = nn.Parameter(torch.zeros(3, 700, dtype=dtype))
    model = nn.ParameterList([parameter])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    learner = mpisgd.DataParallel(model, optimizer, world=world, quant=quant, min_numel=512)
    gradient = torch.full((3, 700), 1 + 2**-7).to(dtype) * (world.rank + 1)
    learner.backward((parameter * gradient).sum(), samples=1)
    assert learner.wait()
    shares = [(gradient.float() / (world.rank + 1) * (r + 1)).to(dtype) for r in range(world.size)]
    mean = sum(s.float() * np.float32(1 / world.size) for s in shares)
    if quant == 32 or world.size == 1:
        torch.testing.assert_close(parameter.grad.float(), mean.to(dtype).float())
    assert parameter.grad.dtype == dtype
    learner.step()
    check_param_hash(model, world)


def test_channels_last_and_tied_and_frozen_and_empty_parameters(world):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.conv = nn.Conv2d(3, 20, 3)
            self.a = nn.Linear(20, 20)
            self.b = nn.Linear(20, 20)
            self.b.weight = self.a.weight
            self.frozen = nn.Linear(20, 20).requires_grad_(False)
            self.empty = nn.Parameter(torch.zeros(0, 3))

        def forward(self, x):
            x = self.conv(x).mean((2, 3))
            return self.frozen(self.b(self.a(x))).sum(1) + self.empty.sum()

    x = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model = Odd().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = mpisgd.DataParallel(model, optimizer, world=world, min_numel=0)
    mine = x[parts(8, world.size, "equal")[world.rank]]
    for _ in range(3):
        learner.backward(model(mine).square().mean(), samples=len(mine))
        learner.step()
    reference = Odd()
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        plain.zero_grad()
        reference(x).square().mean().backward()
        plain.step()
    assert distance(model, reference) <= 1e-6
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_a_mean_too_large_for_fp16_is_skipped_on_all_ranks(world):
    """Each share fits into half precision, and the sum fits into fp32, but not the rounded mean."""
    parameter = nn.Parameter(torch.zeros(3, 700, dtype=torch.float16))
    model = nn.ParameterList([parameter])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    learner = mpisgd.DataParallel(
        model, optimizer, world=world, quant=1, min_numel=512, scaler=scaler
    )
    learner.backward((parameter * 60_000.0 * 2).float().mean() * parameter.numel(), samples=1)
    assert learner.step() is False
    assert not parameter.any()
    assert all(not residual.any() for residual in learner.residuals)
    assert scaler.get_scale() == 2.0**-3
