"""From options to a trainer, and that all ranks refuse together, whoever found the fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mpisgd.config import ConfigError, Options
from mpisgd.job import open_reporter, prepare, together
from mpisgd.parameters import param_hash

pytestmark = pytest.mark.mpi


def refusal(world: Any, options: Options, match: str) -> str:
    with pytest.raises(ValueError, match=match) as caught:
        prepare(world, options)
    world.check_same("refusal", [("text", str(caught.value))])
    return str(caught.value)


def test_a_stage_that_one_rank_fails_fails_everywhere(world):
    last = world.size - 1

    def build() -> int:
        if world.rank == last:
            raise FileNotFoundError("no such file: x")
        return 1

    with pytest.raises(ValueError, match="no such file: x"):
        together(world, build)
    assert together(world, lambda: 7) == 7


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": "vgg16", "data": "digits"}, "vgg16 .*8x8"),
        ({"model": "speechdnn", "data": "digits"}, "digits"),
        ({"quant": 1, "collective": "plain"}, "--collective: plain cannot carry 1 bit"),
        ({"data_dir": "/nowhere/at/all"}, "/nowhere/at/all does not exist"),
        ({"data": "cifar10", "data_dir": "."}, "(?i)cifar"),
        ({"log_dir": "/dev/null/logs"}, "--log-dir: cannot write /dev/null/logs"),
        ({"json": "/nowhere/run.json"}, "--json: cannot write /nowhere/run.json"),
    ],
)
def test_what_cannot_be_honoured(world, shared_tmp, monkeypatch, options, text):
    monkeypatch.chdir(shared_tmp)
    refusal(world, Options(**options), text)


def test_batch_norm_needs_two_samples_on_each_rank(world):
    text = refusal(world, Options(data="digits", batch=2 * world.size - 1), "batch norm")
    assert text.startswith(f"--batch: {2 * world.size - 1} over {world.size} rank")
    assert f"give --batch {2 * world.size} or more" in text


def test_options_must_be_the_same(world):
    if world.size == 1:
        pytest.skip("one rank cannot differ from itself")
    options = Options(data="digits", lr=0.1 if world.is_main else 0.2)
    refusal(world, options, "--lr is '0.1' on rank 0 and '0.2' on rank")


def test_data_that_one_rank_does_not_find(world, shared_tmp, monkeypatch):
    last = world.rank == world.size - 1
    if world.is_main:
        (shared_tmp / "data").mkdir()
    world.barrier()
    monkeypatch.chdir("/" if last else shared_tmp)
    text = refusal(world, Options(data="auto", data_dir="data"), "data does not exist")
    if world.size > 1:
        assert text.endswith(f"(rank {world.size - 1})")


def test_a_prepared_run(world, capfd):
    trainer = prepare(
        world, Options(data="digits", quant=1, warmup=5000, lr_scale="linear", batch=64)
    )
    assert trainer.course.batch == 64
    assert trainer.course.plan.total_samples == 91_968
    assert trainer.course.plan.schedule.rate == pytest.approx(0.05)
    assert sum(p.numel() for p in trainer.model.parameters()) == 272_474
    groups = trainer.learner.optimizer.param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for module in trainer.model.modules():
        norm = isinstance(module, torch.nn.BatchNorm2d)
        for parameter in module.parameters(recurse=False):
            assert decays[id(parameter)] == (0.0 if norm else 1e-4)
    assert len(decays) == 65
    out = capfd.readouterr().out
    assert out.startswith("mpisgd ") if world.is_main else out == ""


def test_the_seed_decides_the_model_and_ranks_draw_differently(world):
    models, draws = [], []
    for seed in (1, 1, 2):
        models.append(param_hash(prepare(world, Options(data="digits", seed=seed)).model))
        draws.append(float(torch.rand(())))
    assert models[0] == models[1] != models[2]
    assert draws[0] == draws[1] != draws[2]
    table = np.zeros(world.size)
    table[world.rank] = draws[0]
    assert len(set(world.sum(table).tolist())) == world.size


def test_local_training_and_vectors(world, capfd):
    trainer = prepare(world, Options(data="digits", sync="local", batch_per_rank=8))
    assert trainer.course.batch == 8 * world.size
    assert trainer.course.alone
    if world.is_main:
        assert "Payload per step: none" in capfd.readouterr().out


def test_where_ranks_report(world, shared_tmp, capfd):
    logs = shared_tmp / "logs"
    reporter = open_reporter(Options(log_dir=str(logs)), world)
    reporter.line("once")
    reporter.close()
    world.barrier()
    assert capfd.readouterr().out == ("once\n" if world.is_main else "")
    assert [path.name for path in logs.iterdir()] == ["train.log"]
    world.barrier()
    reporter = open_reporter(Options(log_dir=str(logs), all_ranks=True), world)
    reporter.line("every rank")
    reporter.close()
    assert capfd.readouterr().out == f"[rank {world.rank}] every rank\n"
    assert (logs / f"train.rank{world.rank}.log").read_text() == "every rank\n"


def test_a_log_that_only_some_ranks_cannot_write(world, shared_tmp):
    (shared_tmp / f"train.rank{world.size - 1}.log").mkdir(exist_ok=True)
    world.barrier()
    options = Options(log_dir=str(shared_tmp), all_ranks=True)
    if world.rank == world.size - 1:
        with pytest.raises(ConfigError, match="--log-dir: cannot write"):
            open_reporter(options, world)
    refusal(world, options, "--log-dir: cannot write")
