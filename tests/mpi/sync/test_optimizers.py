"""What a learner does to the optimizer that it is given, and what it wants of it."""

from __future__ import annotations

import contextlib
import copy

import numpy as np
import pytest
import torch
from torch import nn

import mpisgd
from mpisgd.parameters import check_param_hash
from tests.training import data, make, network, parts

pytestmark = pytest.mark.mpi


def steps(world, model, learner, count=2, before=lambda: None):
    for step in range(count):
        x, y = data(step, 24)
        mine = parts(24, world.size, "equal")[world.rank]
        learner.backward(nn.functional.cross_entropy(model(x[mine]), y[mine]), samples=len(x[mine]))
        before()
        learner.step()


def test_groups_that_the_caller_holds_stay_the_optimizers(world):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = optimizer.param_groups[0]
    learner = mpisgd.DataParallel(model, optimizer, world=world)
    group["lr"] = 0.0
    before = mpisgd.param_hash(model)
    steps(world, model, learner)
    assert mpisgd.param_hash(model) == before


def test_a_tensor_learning_rate_stays_the_callers(world):
    model = network()
    rate = torch.tensor(0.1 * (1 + world.rank))
    learner = mpisgd.DataParallel(model, torch.optim.SGD(model.parameters(), lr=rate), world=world)
    assert float(rate) == pytest.approx(0.1)
    rate.fill_(0.01)
    steps(world, model, learner)
    check_param_hash(model, world)
    assert learner.optimizer.param_groups[0]["lr"] is rate


def test_numpy_hyper_parameters(world):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=np.float64(0.1), momentum=np.float64(0.9))
    steps(world, model, mpisgd.DataParallel(model, optimizer, world=world))
    check_param_hash(model, world)


def test_state_that_cannot_be_sent_is_refused_on_all_ranks(world):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["decayed"] = lambda: None
    with pytest.raises(ValueError, match=r"keep such objects out of its param_groups"):
        mpisgd.DataParallel(model, optimizer, world=world)


def test_different_optimizers_are_named(world):
    model = network()
    kind = torch.optim.SGD if world.rank % 2 == 0 else torch.optim.Adagrad
    optimizer = kind(model.parameters(), lr=0.1)
    if world.size == 1:
        mpisgd.DataParallel(model, optimizer, world=world)
        return
    with pytest.raises(ValueError, match=r"optimizer is 'SGD' on rank"):
        mpisgd.DataParallel(model, optimizer, world=world)


def test_groups_in_another_order_are_named(world):
    model = network()
    groups = [{"params": [p]} for p in model.parameters()]
    if world.rank == 1:
        groups.reverse()
    optimizer = torch.optim.SGD(groups, lr=0.1)
    if world.size == 1:
        mpisgd.DataParallel(model, optimizer, world=world)
        return
    with pytest.raises(ValueError, match="optimizer group 0"):
        mpisgd.DataParallel(model, optimizer, world=world)


def test_an_optimizer_that_wants_a_closure_is_refused(world):
    model = network()
    with pytest.raises(ValueError, match=r"LBFGS.*closure"):
        mpisgd.DataParallel(model, torch.optim.LBFGS(model.parameters()), world=world)


def test_gradients_of_before_do_not_count(world):
    model, clean = network(), network()
    x, y = data(7, 8)
    nn.functional.cross_entropy(model(x), y).backward()
    steps(world, model, make(world, model))
    steps(world, clean, make(world, clean))
    assert mpisgd.param_hash(model) == mpisgd.param_hash(clean)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("backward failed")


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_pass_that_fails_can_be_tried_again(world, accumulate):
    model, clean = network(), network()
    learner = make(world, model)
    x, y = data(0, 24)
    mine = parts(24, world.size, "equal")[world.rank]
    broken = nn.functional.cross_entropy(model[3:](Fails.apply(model[:3](x[mine]))), y[mine])
    context = learner.no_sync() if accumulate else contextlib.nullcontext()
    with context, pytest.raises(ArithmeticError):
        learner.backward(broken, samples=len(x[mine]))
    assert all(p.grad is None for p in model.parameters())
    steps(world, model, learner)
    steps(world, clean, make(world, clean))
    assert mpisgd.param_hash(model) == mpisgd.param_hash(clean)


def test_of_no_units_even_nan_weighs_nothing(world):
    model = network()
    learner = make(world, model)
    x, y = data(0, 8)
    masked = world.size > 1 and world.rank == 0
    loss = nn.functional.cross_entropy(model(x), y)
    loss = loss * float("nan") if masked else loss
    learner.backward(loss, samples=8, weight=0 if masked else 8)
    assert learner.step()
    assert learner.samples_seen == 8 * world.size
    check_param_hash(model, world)


def test_a_gradient_scale_never_ends_at_zero(world):
    model = network()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-98)
    learner = make(world, model, scaler=scaler)
    x, y = data(0, 8)
    for _ in range(5):
        learner.backward(nn.functional.cross_entropy(model(x), y) * float("nan"), samples=8)
        assert not learner.step()
    assert scaler.get_scale() > 0
    learner.backward(nn.functional.cross_entropy(model(x), y), samples=8)
    assert isinstance(learner.step(), bool)


def test_counts_of_numpy_stay_plain_numbers(world):
    model = network()
    learner = make(world, model)
    x, y = data(0, 8)
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(x), y)
        total = np.uint8(8 * world.size)
        learner.backward(loss, samples=np.int32(8), global_samples=total)
        learner.step()
    assert learner.samples_seen == 32 * world.size
    assert type(learner.samples_seen) is int


@pytest.mark.parametrize("collective", ["plain", "stripes"])
def test_ranks_that_disagree_on_global_samples_are_told_so(world, collective):
    model = network()
    learner = make(world, model, collective=collective)
    x, y = data(0, 8)
    wrong = 8 * world.size + world.rank
    learner.backward(nn.functional.cross_entropy(model(x), y), samples=8, global_samples=wrong)
    if world.size == 1:
        assert learner.step()
        return
    with pytest.raises(RuntimeError, match="agree on global_samples"):
        learner.step()


def test_replicas_must_compute_the_same(world):
    model = network()
    learner = make(world, model, quant=1, warmup=100, warmup_mode="replicate")
    x, y = data(world.rank, 12)
    loss = nn.functional.cross_entropy(model(x), y)
    if world.size == 1:
        learner.backward(loss, samples=12)
        return
    with pytest.raises(ValueError, match="replicated warm start"):
        learner.backward(loss, samples=12)


def test_replicas_that_end_at_different_steps_are_told_so(world):
    model = network()
    learner = make(world, model, quant=1, warmup=1000, warmup_mode="replicate")
    x, y = data(0, 12)
    for _ in range(2 + world.rank):
        learner.backward(nn.functional.cross_entropy(model(x), y), samples=12)
        learner.step()
    if world.size == 1:
        learner.finish()
        return
    with pytest.raises(ValueError, match="samples seen"):
        learner.finish()


def test_one_rank_with_a_replicated_warm_start_is_plain_torch(world):
    def run(model, step):
        torch.manual_seed(5)
        for k in range(6):
            x, y = data(k, 24)
            step(nn.functional.cross_entropy(nn.functional.dropout(model(x)), y))

    model, plain = network(), network()
    with mpisgd.World(world.comm.Split(world.rank)) as single:
        torch.manual_seed(5)
        learner = make(single, model, quant=1, warmup=48, warmup_mode="replicate")

        def ours(loss):
            learner.backward(loss, samples=24)
            learner.step()

        run(model, ours)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    def theirs(loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    run(plain, theirs)
    assert mpisgd.param_hash(model) == mpisgd.param_hash(plain)


def test_an_expanded_buffer_is_broadcast(world):
    model = network()
    model.register_buffer("mask", torch.full((1, 3), float(world.rank)).expand(4, 3))
    make(world, model)
    assert (model.mask == 0).all()


def test_many_learners_one_after_another(world):
    """A learner's communicator is free again after finish(): MPICH has 2,048 of them."""
    model = network()
    for _ in range(100):
        make(world, model, bucket_mb=0.001, warmup=10, quant=1).finish()
    assert len(world._dups) < 20


def test_learners_are_neither_copied_nor_pickled(world):
    learner = make(world, network())
    with pytest.raises(TypeError, match="state_dict"):
        copy.copy(learner)
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(learner)


@pytest.mark.parametrize(
    ("loss", "words"),
    [(1.5, "a float"), (torch.ones(2, requires_grad=True), r"shape \(2,\)"), ([], "a list")],
)
def test_losses_that_are_none_are_refused(world, loss, words):
    learner = make(world, network())
    with pytest.raises(TypeError, match=words):
        learner.backward(loss, samples=1)


def test_foreign_states_change_nothing(world):
    model = network()
    learner, local = (
        make(world, model),
        mpisgd.Local(model, torch.optim.SGD(model.parameters(), lr=0.1), world=world),
    )
    with pytest.raises(ValueError, match="learner state"):
        local.load_state_dict({**learner.state_dict(), "samples_seen": 320})
    with pytest.raises(ValueError, match="learner state"):
        learner.load_state_dict(local.state_dict())
    assert local.samples_seen == learner.samples_seen == 0


def test_a_closed_world_says_so(comm):
    world = mpisgd.World(comm)
    world.close()
    for call in (world.barrier, world.dup, lambda: world.agree(True, "fine")):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    with pytest.raises(TypeError, match="intracommunicator"):
        mpisgd.World("cpu")


def test_gradients_that_another_learner_leaves_do_not_count(world):
    """As in a GAN: the generator's loss also fills the gradients of the discriminator."""

    def nets():
        torch.manual_seed(0)
        return nn.Linear(4, 8), nn.Linear(8, 1)

    noise = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    mine = noise[parts(12, world.size, "equal")[world.rank]]
    ours = nets()
    learners = [
        mpisgd.DataParallel(m, torch.optim.SGD(m.parameters(), lr=0.1), world=world) for m in ours
    ]
    plain = nets()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in plain]
    for _ in range(3):
        for index in (0, 1):
            loss = ours[1](ours[0](mine)).square().mean()
            learners[index].backward(loss, samples=len(mine))
            learners[index].step()
            optimizers[index].zero_grad()
            plain[1](plain[0](noise)).square().mean().backward()
            optimizers[index].step()
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a.weight, b.weight, rtol=1e-5, atol=1e-6)
