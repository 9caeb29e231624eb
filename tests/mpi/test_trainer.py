"""The trainer on any number of ranks: lengths, counts, lines, and that looking changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mpisgd.data.base import ImageSet
from mpisgd.progress import Reporter
from mpisgd.schedule import Plan, Schedule
from mpisgd.sync.data_parallel import DataParallel
from mpisgd.sync.local import Local
from mpisgd.sync.statistics import PublishedModel
from mpisgd.tasks.base import Minibatch, Outcome
from mpisgd.tasks.classification import Classification
from mpisgd.trainer import Course, Trainer

pytestmark = pytest.mark.mpi

TRAIN, TEST = 61, 37
CPU = torch.device("cpu")


def images() -> ImageSet:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (TRAIN + TEST, 3, 4, 4), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 5, (TRAIN + TEST,), generator=generator)
    return ImageSet(
        name="made up",
        classes=5,
        train_images=pixels[:TRAIN],
        train_labels=labels[:TRAIN],
        test_images=pixels[TRAIN:],
        test_labels=labels[TRAIN:],
        mean=(128.0,) * 3,
        std=(64.0,) * 3,
        shift=1,
        flip=True,
        fill=0,
    )


def plain_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 90), nn.ReLU(), nn.Linear(90, 5))


def norm_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(128, 5),
    )  # fmt: skip


def plan(total: int, epoch: int, schedule: Schedule | None = None) -> Plan:
    return Plan(epoch, total, schedule or Schedule(0.05))


def run(
    world: Any,
    folder: Path | None = None,
    *,
    course: Course,
    make: Any = plain_net,
    task: Classification | None = None,
    local: bool = False,
    **options: Any,
) -> tuple[Trainer, list[dict[str, Any]]]:
    """Train from seed 0; the trainer and, with a folder, rank 0's events."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(1000 + world.rank)
    published = PublishedModel(model, world, from_main=local)
    learner = (
        Local(model, optimizer, world=world)
        if local
        else DataParallel(model, optimizer, world=world, min_numel=256, column=64, **options)
    )
    events = folder / "run.json" if folder is not None and world.is_main else None
    trainer = Trainer(
        task or Classification(images(), seed=5, device=CPU),
        model,
        learner,
        world=world,
        course=course,
        published=published,
        reporter=Reporter(speaks=world.is_main, events=events),
    )
    trainer.run()
    trainer.reporter.close()
    text = events.read_text() if events else ""
    return trainer, [json.loads(line) for line in text.splitlines()]


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


def test_epochs_end_with_the_minibatch_that_crosses_them(world, shared_tmp, capfd):
    trainer, events = run(
        world, shared_tmp, course=Course(batch=32, plan=plan(total=250, epoch=100))
    )
    assert trainer.learner.samples_seen == 256
    assert [figures.samples for figures in trainer.epochs] == [128, 96, 32]
    assert [figures.steps for figures in trainer.epochs] == [4, 3, 1]
    assert trainer.evaluations == 3
    out = capfd.readouterr().out
    if world.is_main:
        assert [event["samples"] for event in of(events, "epoch")] == [128, 96, 32]
        assert [event["epoch"] for event in of(events, "epoch")] == [1, 2, 3]
        assert [event["samples"] for event in of(events, "eval")] == [TEST] * 3
        lines = re.findall(
            r"^Finished Epoch \[(\d)\]: \[Training\] loss = \S+ \* (\d+), ", out, re.M
        )
        assert lines == [("1", "128"), ("2", "96"), ("3", "32")]
        assert "Finished Evaluation [3]: Minibatch[1-1]: metric = " in out
    else:
        assert out == ""


def test_the_counts_of_cntks_log(world):
    """98 minibatches of 512 make the first epoch of 50,000, then 98, then 97: here 1/512 of it."""
    trainer, _ = run(
        world, course=Course(batch=8, plan=plan(total=3 * 782 - 3, epoch=782), eval_every=0)
    )
    assert [figures.samples for figures in trainer.epochs] == [784, 784, 776]


def test_a_minibatch_may_pass_several_epochs(world, shared_tmp):
    trainer, events = run(
        world, shared_tmp, course=Course(batch=64, plan=plan(total=200, epoch=30), eval_every=2)
    )
    assert [figures.samples for figures in trainer.epochs] == [64, 64, 64, 64]
    if world.is_main:
        assert [event["epoch"] for event in of(events, "epoch")] == [2, 4, 6, 8]
        assert len(of(events, "eval")) == 4


@pytest.mark.parametrize(("every", "times"), [(0, 1), (1, 3), (2, 2), (3, 1), (5, 1)])
def test_how_often_it_evaluates(world, every, times):
    """Every so many epochs, and once at the end unless that was just done."""
    trainer, _ = run(
        world, course=Course(batch=16, plan=plan(total=96, epoch=32), eval_every=every)
    )
    assert trainer.evaluations == times
    assert 0 <= trainer.error <= 1


def test_evaluating_changes_nothing(world):
    hashes = set()
    for every in (0, 1):
        trainer, _ = run(
            world,
            make=norm_net,
            course=Course(batch=16, plan=plan(total=192, epoch=32), eval_every=every),
        )
        hashes.add(trainer._param_hash())
        hashes.add(str([buffer.tolist() for buffer in trainer.model.buffers()]))
    assert len(hashes) == 2


def test_two_runs_are_the_same_also_at_one_bit(world):
    for bits in (32, 1):
        course = Course(batch=16, plan=plan(total=160, epoch=80), eval_every=0)
        first, _ = run(world, make=norm_net, course=course, quant=bits, warmup=48)
        second, _ = run(world, make=norm_net, course=course, quant=bits, warmup=48)
        assert first._param_hash() == second._param_hash()
        assert first.epochs[-1].loss == second.epochs[-1].loss
        assert first.error == second.error


def test_loss_is_the_mean_over_all_samples_of_the_epoch(world):
    """At rate 0 the model stays as it is, so the loss can be computed in one go."""
    still = Schedule(0.0)
    trainer, _ = run(world, course=Course(batch=25, plan=plan(TRAIN * 4, TRAIN * 4, still)))
    torch.manual_seed(0)
    model, task = plain_net(), Classification(images(), seed=5, device=CPU)
    loss = errors = samples = 0.0
    for k in range(-(-TRAIN * 4 // 25)):
        part = task.minibatch(k, batch=25, shard=(0, 1))
        outcome = task.outcome(model, part)
        loss += float(outcome.loss.detach()) * part.samples
        errors += int(outcome.errors)
        samples += part.samples
    (figures,) = trainer.epochs
    assert figures.samples == samples
    assert figures.loss == pytest.approx(loss / samples, rel=1e-6)
    assert figures.error == errors / samples


def test_any_number_of_ranks_gives_the_curve_of_one(world, comm):
    """Law 6 through the trainer, also where a rank's part of a minibatch is empty."""
    from mpi4py import MPI

    from mpisgd.world import World

    for batch in (12, 3):
        course = Course(batch=batch, plan=plan(20 * batch, batch), eval_every=0)
        together, _ = run(world, course=course)
        with World(MPI.COMM_SELF, device="cpu") as alone:
            single, _ = run(alone, course=course)
        ours = np.array([figures.loss for figures in together.epochs])
        reference = np.array([figures.loss for figures in single.epochs])
        assert len(ours) == 20
        np.testing.assert_allclose(ours, reference, rtol=1e-5)


class Watched(Classification):
    """Remembers which part of each minibatch was asked for."""

    def __init__(self) -> None:
        super().__init__(images(), seed=5, device=CPU)
        self.shards: list[tuple[int, int]] = []

    def minibatch(self, k: int, *, batch: int, shard: tuple[int, int]) -> Minibatch:
        self.shards.append(shard)
        return super().minibatch(k, batch=batch, shard=shard)


def test_the_rate_follows_the_samples(world, shared_tmp):
    schedule = Schedule(0.1, (32, 80), (1.0, 0.1, 0.01))
    _, events = run(
        world, shared_tmp, course=Course(batch=16, plan=plan(112, 16, schedule), eval_every=0)
    )
    if world.is_main:
        rates = [event["lr"] for event in of(events, "epoch")]
        assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.01, 0.001, 0.001])


def test_the_switch_to_one_bit_is_said_and_counted(world, shared_tmp, capfd):
    _, events = run(
        world,
        shared_tmp,
        course=Course(batch=16, plan=plan(128, 64), warmup=40, eval_every=0),
        quant=1,
        warmup=40,
    )
    if not world.is_main:
        return
    said = re.findall(r"^Quantization: .*$", capfd.readouterr().out, re.M)
    expected = "Quantization: 1 bit from sample 48 (warm-up 40)"
    assert said == ([expected] if world.size > 1 else [])
    first, second = of(events, "epoch")
    assert (first["bits_on_wire"], second["bits_on_wire"]) == (
        (1, 1) if world.size > 1 else (32, 32)
    )
    if world.size > 1:
        assert 0 < second["wire_bytes_per_rank"] < first["wire_bytes_per_rank"]
        assert second["messages_per_rank"] == 4 * 2 * (world.size - 1)
    else:
        assert second["wire_bytes_per_rank"] == 0


def test_wire_bytes_are_the_formula(world, shared_tmp):
    _, events = run(
        world,
        shared_tmp,
        course=Course(batch=16, plan=plan(64, 64), eval_every=0),
        quant=1,
        collective="stripes",
    )
    if not world.is_main:
        return
    n = world.size
    # Linear(48, 90) and Linear(90, 5) are coded in columns of 64; the offsets are raw.
    columns = [64] * (4320 // 64) + [4320 % 64] + [64] * (450 // 64) + [450 % 64]
    payload = 4 * (90 + 5) + sum(8 + -(-length // 8) for length in columns if length)
    (epoch,) = of(events, "epoch")
    steps = epoch["steps"]
    expected = steps * (2 * (n - 1) / n * payload + 64 * (n - 1))
    assert epoch["wire_bytes_per_rank"] == pytest.approx(expected, rel=1e-12)


def test_a_replicated_warm_start_counts_samples_once(world, capfd):
    task = Watched()
    trainer, _ = run(
        world,
        task=task,
        make=norm_net,
        course=Course(batch=16, plan=plan(96, 96), warmup=40, eval_every=0),
        quant=1,
        warmup=40,
        warmup_mode="replicate",
    )
    own = (world.rank, world.size)
    assert task.shards == [(0, 1)] * 3 + [own] * 3
    assert trainer.epochs[0].samples == 96
    if world.is_main and world.size > 1:
        out = capfd.readouterr().out
        assert f"Data parallelism: {world.size} ranks from sample 48 (warm-up 40)" in out
        assert "Quantization: 1 bit from sample 48 (warm-up 40)" in out


class Poisoned(Classification):
    """The loss of some minibatches is not finite, on the last rank only."""

    def __init__(self, world: Any, bad: set[int]) -> None:
        super().__init__(images(), seed=5, device=CPU)
        self.last = world.rank == world.size - 1
        self.bad, self.k = bad, -1

    def minibatch(self, k: int, *, batch: int, shard: tuple[int, int]) -> Minibatch:
        self.k = k
        return super().minibatch(k, batch=batch, shard=shard)

    def outcome(self, model: nn.Module, part: Minibatch) -> Outcome:
        outcome = super().outcome(model, part)
        if self.last and self.k in self.bad and model.training:
            return outcome._replace(loss=outcome.loss * float("nan"))
        return outcome


@pytest.mark.parametrize("bits", [1, 32])
def test_skipped_steps_are_said_once_each(world, shared_tmp, capfd, bits):
    trainer, events = run(
        world,
        shared_tmp,
        task=Poisoned(world, {1, 3}),
        course=Course(batch=16, plan=plan(128, 64), eval_every=0),
        quant=bits,
    )
    assert trainer.learner.samples_seen == 128
    assert all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
    if world.is_main:
        said = re.findall(r"^Skipped a step at sample (\d+)", capfd.readouterr().out, re.M)
        assert said == ["16", "48"]
        first, second = of(events, "epoch")
        assert (first["skipped_steps"], second["skipped_steps"]) == (2, 0)
        assert first["loss"] is None
        assert second["loss"] > 0


def test_many_skipped_steps_are_summed_up(world, capfd):
    run(
        world,
        task=Poisoned(world, set(range(100))),
        course=Course(batch=16, plan=plan(16 * 14, 16 * 14), eval_every=0),
    )
    if world.is_main:
        out = capfd.readouterr().out
        assert out.count("Skipped a step") == 10
        assert "Skipped 4 more steps in epoch 1" in out


def test_local_training_publishes_rank_0(world, shared_tmp):
    trainer, events = run(
        world,
        shared_tmp,
        local=True,
        make=norm_net,
        course=Course(batch=16, plan=plan(128, 64), eval_every=1, alone=True),
    )
    assert trainer.learner.samples_seen == 128
    assert [figures.samples for figures in trainer.epochs] == [64, 64]
    assert trainer.epochs[0].wire_bytes_per_rank == 0
    if world.is_main:
        from mpisgd.parameters import param_hash

        assert of(events, "done")[0]["param_hash"] == param_hash(trainer.model)


def test_all_fields_of_the_events(world, shared_tmp):
    _, events = run(world, shared_tmp, course=Course(batch=16, plan=plan(64, 32)))
    if not world.is_main:
        return
    assert [event["event"] for event in events] == ["epoch", "eval", "epoch", "eval", "done"]
    wanted = "epoch samples loss error seconds samples_per_s steps bits_on_wire"
    wanted += " wire_bytes_per_rank messages_per_rank control_bytes phases skipped_steps param_hash"
    for event in of(events, "epoch"):
        assert set(wanted.split()) <= set(event)
        phases = "data forward backward encode transfer decode optimizer wait"
        assert set(event["phases"]) == set(phases.split())
        assert min(event["phases"].values()) >= 0
        assert min(event["phases"]["backward"], event["seconds"]) > 0
        assert re.fullmatch("[0-9a-f]{16}", event["param_hash"])
        # Counts, hashes and evaluations of the epoch before are booked, too.
        assert (event["control_bytes"] > 0) == (world.size > 1)
    done = events[-1]
    assert {"samples", "seconds", "error", "param_hash"} <= set(done)
    assert done["samples"] == 64
    assert done["error"] == of(events, "eval")[-1]["error"]
    assert done["param_hash"] == of(events, "epoch")[-1]["param_hash"]


def test_the_profile_is_one_table(world, capfd):
    run(world, course=Course(batch=16, plan=plan(64, 32), eval_every=0, profile=True))
    if world.is_main:
        out = capfd.readouterr().out
        assert out.count("Profile: ms per step") == 1
        assert re.search(r"^backward +\d+\.\d{3} +\d+\.\d{3}$", out, re.M)
