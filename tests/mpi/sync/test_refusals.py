"""What learners refuse, and how they say so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.training import FEATURES, data, make, network, parts

pytestmark = pytest.mark.mpi


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
        ({"column": 100.5}, "column"),
        ({"column": True}, "column"),
        ({"column": None}, "column"),
        ({"min_numel": "x"}, "min_numel"),
        ({"bucket_mb": True}, "bucket_mb"),
        ({"bucket_mb": "1"}, "bucket_mb"),
        ({"quant": 1.0}, "must be one of"),
        ({"quant": [1]}, "must be one of"),
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
