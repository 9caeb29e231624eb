"""DataParallel: the laws of synchronous training, at any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import mpisgd
from mpisgd.parameters import check_param_hash

pytestmark = pytest.mark.mpi

FEATURES, CLASSES = 80, 10


def network(seed: int = 0) -> nn.Module:
    """A small net whose two matrices are coded with min_numel=512, without batch norm."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, CLASSES)
    )


def data(step: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global minibatch of a step, the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(batch, FEATURES, generator=generator)
    return x, torch.randint(0, CLASSES, (batch,), generator=generator)


def parts(batch: int, size: int, shares: str) -> list[slice]:
    """How a minibatch is dealt out: equally, unequally, or with empty ranks."""
    if shares == "equal":
        cuts = [batch * r // size for r in range(size + 1)]
    elif shares == "unequal":
        weights = np.cumsum([0, *range(1, size + 1)])
        cuts = [batch * int(w) // int(weights[-1]) for w in weights]
    else:  # all in the last rank
        cuts = [0] * size + [batch]
    return [slice(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]


def make(world, model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    options.setdefault("min_numel", 512)
    return mpisgd.DataParallel(model, optimizer, world=world, **options)


def train(world, steps=20, batch=24, shares="equal", known=False, **options):
    """Train `network()` and return it with its learner and the losses of the whole minibatch."""
    model = network()
    learner = make(world, model, **options)
    losses = []
    for step in range(steps):
        x, y = data(step, batch)
        with torch.no_grad():
            losses.append(float(nn.functional.cross_entropy(model(x), y)))
        mine = parts(batch, world.size, shares)[world.rank]
        x, y = x[mine], y[mine]
        loss = nn.functional.cross_entropy(model(x), y) if len(x) else None
        learner.backward(loss, samples=len(x), global_samples=batch if known else None)
        assert learner.step()
    learner.finish()
    return model, learner, losses


def alone(steps=20, batch=24):
    """Plain torch on one process."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    losses = []
    for step in range(steps):
        x, y = data(step, batch)
        loss = nn.functional.cross_entropy(model(x), y)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, losses


def distance(one: nn.Module, two: nn.Module) -> float:
    a = torch.cat([p.detach().reshape(-1) for p in one.parameters()])
    b = torch.cat([p.detach().reshape(-1) for p in two.parameters()])
    return float((a - b).norm() / b.norm())


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


def test_accumulation_is_one_step_on_everything(world):
    """no_sync: the weighted mean of all passes, whatever their sizes."""
    model = network()
    learner = make(world, model)
    x, y = data(0, 40)
    mine = x[world.rank :: world.size], y[world.rank :: world.size]
    cuts = [0, 1, len(mine[0]) // 2, len(mine[0])]
    passes = [slice(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
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
    model, learner, _ = train(world, steps=5, collective="stripes", bucket_mb=bucket_mb)
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


def test_drift_is_named(world):
    model = network()
    learner = make(world, model, check_every=1)
    x, y = data(0, 12)
    mine = parts(12, world.size, "equal")[world.rank]
    learner.backward(nn.functional.cross_entropy(model(x[mine]), y[mine]), samples=len(x[mine]))
    if world.rank == world.size - 1 and world.size > 1:
        with torch.no_grad():
            model[2].bias[3] += 1
    if world.size == 1:
        assert learner.step()
    else:
        with pytest.raises(ValueError, match=r"2\.bias"):
            learner.step()


def test_calls_out_of_order_are_refused(world):
    model = network()
    learner = make(world, model)
    with pytest.raises(RuntimeError, match="nothing to wait for"):
        learner.step()
    x, y = data(0, 4)
    learner.backward(nn.functional.cross_entropy(model(x), y), samples=4)
    with pytest.raises(RuntimeError, match="twice before step"):
        learner.backward(nn.functional.cross_entropy(model(x), y), samples=4)
    with pytest.raises(RuntimeError, match="no step"):
        learner.finish()
    with pytest.raises(RuntimeError, match="no step"):
        learner.state_dict()
    learner.step()
    learner.finish()
    with pytest.raises(RuntimeError, match=r"finish\(\) was called"):
        learner.backward(None, samples=0)


def test_a_parameter_added_later_is_refused(world):
    model = network()
    learner = make(world, model)
    extra = nn.Parameter(torch.ones(2))
    learner.optimizer.add_param_group({"params": [extra]})
    x, y = data(0, 4)
    loss = nn.functional.cross_entropy(model(x), y) + extra.sum()
    with pytest.raises(RuntimeError, match="make a new learner"):
        learner.backward(loss, samples=4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quant": 7}, "must be one of"),
        ({"quant": 1, "collective": "plain"}, "plain carries"),
        ({"warmup": -1}, "warmup"),
        ({"warmup": 1.5}, "warmup"),
        ({"warmup_mode": "nosuch"}, "warmup_mode"),
        ({"delay": 1}, "delay"),
        ({"overlap": True}, "overlap"),
        ({"method": "1bit-adam"}, "method"),
        ({"bucket_mb": -1.0}, "bucket_mb"),
        ({"column": 0}, "column"),
        ({"min_numel": -1}, "min_numel"),
        ({"check_every": -1}, "check_every"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(world, options, words):
    with pytest.raises(ValueError, match=words):
        make(world, network(), **options)


@pytest.mark.parametrize("call", [{"samples": -1}, {"samples": 4, "weight": float("nan")}])
def test_counts_out_of_range_are_refused(world, call):
    model = network()
    learner = make(world, model)
    x, y = data(0, 4)
    with pytest.raises(ValueError, match=r"samples|weight"):
        learner.backward(nn.functional.cross_entropy(model(x), y), **call)


def test_ranks_with_different_options_or_models_are_told_so(world):
    if world.size == 1:
        make(world, network())
        return
    odd = world.rank == 1
    with pytest.raises(ValueError, match="column"):
        make(world, network(), column=512 + odd)
    wider = nn.Sequential(nn.Linear(FEATURES, 60 + odd))
    with pytest.raises(ValueError, match=r"0\.(weight|bias)"):
        make(world, wider)
