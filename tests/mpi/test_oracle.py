"""Law 11: n ranks and the oracle's n simulated ranks hold the same bits after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mpisgd
from tests.oracle import Local, Oracle, Scaler, parameter_hash
from tests.oracle.cases import CASES, Case

pytestmark = pytest.mark.mpi
STEPS = 50


@pytest.fixture(autouse=True)
def _one_thread(world: Any) -> Iterator[None]:
    """Sums inside torch's operators may depend on the number of threads, which World sets."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, groups with options of their own, and a parameter that no module owns."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    stranger = nn.Parameter(torch.ones(70, 70))
    groups = [{"params": vectors, "weight_decay": 0.0}, {"params": [*matrices, stranger]}]
    return torch.optim.AdamW(groups, lr=0.01)


def uneven(draws: np.random.Generator, size: int, step: int) -> list[int]:
    """Samples of each rank: some ranks have none, and now and then nobody has."""
    if step % 16 == 15:
        return [0] * size
    counts = draws.integers(0, 6, size)
    counts[draws.integers(size)] += 3
    return [int(count) for count in counts]


class Run:
    """A learner on this rank and the oracle of all ranks, fed with the same batches."""

    def __init__(
        self,
        world: Any,
        case: Case,
        *,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
        scale: float | None = None,
        **options: Any,
    ) -> None:
        self.world, self.case = world, case
        scaler = None if scale is None else torch.amp.GradScaler("cpu", scale, growth_interval=7)
        common = {"column": case.column, "min_numel": case.min_numel, **options}
        torch.manual_seed(world.rank)  # rank 0's weights are everybody's
        self.model = case.build()
        self.learner = mpisgd.DataParallel(
            self.model,
            optimizer(self.model),
            world=world,
            collective="stripes",
            scaler=scaler,
            **common,
        )
        torch.manual_seed(0)
        model = case.build()
        rule = None if scale is None else Scaler(scale, growth=2.0, backoff=0.5, interval=7)
        self.oracle = Oracle(model, optimizer(model), ranks=world.size, scaler=rule, **common)
        self.draws = np.random.default_rng(5)
        self.steps = 0
        self.difference: str | None = None

    def batches(self, step: int, samples: list[int], weights: list[float] | None) -> list[Local]:
        """One pass of all ranks. A rank without samples has no loss."""
        locals_ = []
        for rank, count in enumerate(samples):
            loss = self.case.loss(self.draws, count, step, rank) if count else None
            weight = None if weights is None else weights[rank]
            locals_.append(Local(loss, count, weight))
        return locals_

    def step(
        self,
        passes: list[list[Local]],
        *,
        tell_total: bool = False,
        before_update: Callable[[list[nn.Parameter]], None] | None = None,
    ) -> bool:
        """The same step by both, and a comparison of all that can be seen from outside."""
        *held, last = [one[self.world.rank] for one in passes]
        total = sum(local.samples for local in passes[-1])
        with self.learner.no_sync():
            for local in held:
                self.backward(local)
        self.backward(last, global_samples=total if tell_total else None)
        if before_update is not None and self.learner.wait():
            before_update(
                [p for group in self.learner.optimizer.param_groups for p in group["params"]]
            )
        moved = self.learner.step()
        expected = self.oracle.step(passes, before_update=before_update)
        self.compare("moved", moved, expected)
        self.compare_state()
        self.steps += 1
        return moved

    def backward(self, local: Local, **options: Any) -> None:
        loss = None if local.loss is None else local.loss(self.model)
        self.learner.backward(loss, samples=local.samples, weight=local.weight, **options)

    def compare_state(self) -> None:
        learner, oracle = self.learner, self.oracle
        self.compare("bits", learner.bits_on_wire, 1 if oracle.coding else 32)
        self.compare("samples_seen", learner.samples_seen, oracle.samples_seen)
        self.compare("skipped_steps", learner.skipped_steps, oracle.skipped)
        wire = oracle.wire[self.world.rank]
        self.compare("messages", learner.wire.messages, wire.messages)
        self.compare("bytes", learner.wire.bytes, wire.bytes)
        self.compare("hash", mpisgd.param_hash(self.model), parameter_hash(oracle.model))

    def compare(self, what: str, ours: object, expected: object) -> None:
        """Remember the first difference: a rank that stops at once leaves the others behind."""
        if ours != expected and self.difference is None:
            self.difference = f"step {self.steps}: {what} is {ours}, the oracle has {expected}"

    def end(self) -> None:
        """Every test ends here."""
        self.learner.finish()
        self.compare_state()
        assert self.steps > 0
        assert self.difference is None, self.difference


@pytest.mark.parametrize("quant", [1, 32])
@pytest.mark.parametrize("name", CASES)
def test_same_bits_with_uneven_batches(world: Any, name: str, quant: int) -> None:
    """Warm-up ends in the middle of the run."""
    warmup = 30 * world.size
    run = Run(world, CASES[name], quant=quant, warmup=warmup)
    for step in range(STEPS):
        samples = uneven(run.draws, world.size, step)
        run.step([run.batches(step, samples, None)], tell_total=step % 2 == 0)
    run.end()
    assert run.learner.samples_seen > 2 * warmup


@pytest.mark.parametrize("quant", [1, 32])
def test_same_bits_with_accumulation_and_weights(world: Any, quant: int) -> None:
    run = Run(world, CASES["tied"], quant=quant)
    for step in range(STEPS):
        passes = []
        for _ in range(1 + step % 3):
            samples = uneven(run.draws, world.size, step)
            weights = [3.0 * count + 0.5 * (count > 0) for count in samples]
            passes.append(run.batches(step, samples, weights))
        run.step(passes)
    run.end()


def test_same_bits_with_clipping_and_several_groups(world: Any) -> None:
    def clip(parameters: list[nn.Parameter]) -> None:
        # In one order on both sides: the norm is a sum.
        ordered = sorted(parameters, key=lambda p: (p.numel(), tuple(p.shape)))
        nn.utils.clip_grad_norm_(ordered, 0.5)

    run = Run(world, CASES["mlp"], quant=1, optimizer=two_groups)
    for step in range(STEPS):
        run.step([run.batches(step, uneven(run.draws, world.size, step), None)], before_update=clip)
    run.end()


def test_same_bits_with_buckets(world: Any) -> None:
    run = Run(world, CASES["mlp-short-columns"], quant=1, bucket_mb=0.02)
    for step in range(STEPS):
        run.step([run.batches(step, uneven(run.draws, world.size, step), None)])
    run.end()


@pytest.mark.parametrize("quant", [1, 32])
def test_same_bits_when_steps_are_skipped(world: Any, quant: int) -> None:
    """A NaN or an infinity on one rank drops the step on all."""
    run = Run(world, CASES["mlp"], quant=quant, warmup=60 * world.size)
    moved = []
    for step in range(STEPS):
        passes = [run.batches(step, [4] * world.size, None)]
        if step % 6 == 5:
            spoil(passes[0], rank=step % world.size, by=float("nan") if step % 4 else float("inf"))
        moved.append(run.step(passes))
    run.end()
    assert moved == [step % 6 != 5 for step in range(STEPS)]


def spoil(locals_: list[Local], *, rank: int, by: float) -> None:
    """Multiply the loss of one rank."""
    good = locals_[rank].loss
    assert good is not None
    locals_[rank] = locals_[rank]._replace(loss=lambda model: good(model) * by)


def test_same_bits_with_a_loss_scale(world: Any) -> None:
    """The scale starts too high, backs off at every overflow, and grows again."""
    run = Run(world, CASES["float16"], quant=1, warmup=30 * world.size, scale=2.0**24)
    moved = [
        run.step([run.batches(step, uneven(run.draws, world.size, step), None)])
        for step in range(STEPS)
    ]
    run.end()
    assert not moved[0]
    assert sum(moved) > STEPS // 2


def test_same_bits_with_a_replicated_warm_start(world: Any) -> None:
    """Until the switch every rank computes the same whole minibatch, from rank 0's buffers on."""
    run = Run(world, CASES["convolutions"], quant=1, warmup=100, warmup_mode="replicate")
    for step in range(STEPS):
        rank, ranks = run.learner.shard
        assert (rank, ranks) == ((0, 1) if run.oracle.replicating else (world.rank, world.size))
        whole = run.case.loss(run.draws, 8, step, 0)
        parts = run.batches(step, [2] * world.size, None)
        run.step([[Local(whole, 8)] * world.size if ranks == 1 else parts])
    run.end()
    assert run.learner.shard == (world.rank, world.size)


def test_batch_norm_statistics_stay_local(world: Any) -> None:
    """The oracle swaps the buffers of its ranks; each rank's own must be the same."""
    run = Run(world, CASES["convolutions"], quant=32)
    for step in range(5):
        run.step([run.batches(step, [3] * world.size, None)])
    run.end()
    buffers = run.oracle.buffers_of(world.rank)
    for mine, simulated in zip(run.model.buffers(), buffers, strict=True):
        assert torch.equal(mine, simulated)
