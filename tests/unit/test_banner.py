from __future__ import annotations

import json
from typing import Any

import pytest

from mpisgd.banner import Facts, banner, warnings


def facts(**changes: Any) -> Facts:
    values: dict[str, Any] = {
        "version": "0.1.0",
        "ranks": 4,
        "devices": (("cpu",) * 4,),
        "threads": 1,
        "mpi": "MPICH 5.0.2",
        "model": "resnet20",
        "parameters": 272_474,
        "tensors": 65,
        "data": "digits",
        "train_size": 1437,
        "test_size": 360,
        "hint": "get it with: python -m mpisgd.data fetch cifar10",
        "sync": "data-parallel",
        "batch": 128,
        "rate": 0.1,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "seed": 0,
        "total_samples": 91_968,
        "epoch_samples": 1437,
        "bits": 1,
        "collective": "stripes",
        "warmup": 50_000,
        "warmup_mode": "float32",
        "payload_32": 1_089_896,
        "payload_bits": 111_776,
        "idle_options": (),
        "world_warnings": (),
    }
    return Facts(**{**values, **changes})


def test_everything_is_said():
    text = banner(facts())
    for part in (
        "mpisgd 0.1.0: 4 ranks on 1 node, device cpu, 1 thread a rank, MPICH 5.0.2",
        "resnet20, 272,474 parameters in 65 tensors",
        "digits, 1,437 training and 360 test samples (get it with: python -m mpisgd.data fetch",
        "minibatch 128 (32 a rank), lr 0.1",
        "1,089,896 bytes at 32 bits, 111,776 at 1 bit (9.8 times fewer), by stripes",
        "Warm start: 32 bits for the first 50,000 samples, then 1 bit",
    ):
        assert part in text
    assert "Warning" not in text
    # The line that says that the switch happened is not anticipated.
    assert "from sample" not in text


def test_when_quantization_starts():
    assert "none, 1 bit from the first step" in banner(facts(warmup=0))
    assert "1 bit never starts" in banner(facts(warmup=91_968))
    assert "computes the whole minibatch" in banner(facts(warmup_mode="replicate"))
    assert "Warm start" not in banner(facts(bits=32, payload_bits=1_089_896))
    assert "then 32 bits" in banner(facts(bits=32, payload_bits=1_089_896, warmup_mode="replicate"))


def test_uneven_parts_and_several_nodes():
    text = banner(facts(ranks=3, devices=(("cuda:0", "cuda:1"), ("cuda:0",)), batch=128, threads=8))
    assert "3 ranks on 2 nodes, device cuda, 8 threads a rank" in text
    assert "node 0: 2 ranks on cuda:0, cuda:1" in text
    assert "node 1: 1 rank on cuda:0" in text
    assert "(about 42.7 a rank)" in text


def test_many_nodes_are_not_all_listed():
    text = banner(facts(ranks=20, devices=(("cuda:0",),) * 20))
    assert text.count("  node ") == 8
    assert "and 12 more" in text


def test_no_exchange():
    assert "Payload per step: none (one rank)" in banner(facts(ranks=1, devices=(("cpu",),)))
    assert "ranks train alone" in banner(facts(sync="local", bits=32, payload_bits=1_089_896))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"ranks": 1, "devices": (("cpu",),)}, ["--quant 1 with one rank"]),
        ({"payload_bits": 600_000}, ["sends only 1.82 times fewer bytes"]),
        ({"bits": 32, "payload_bits": 1_089_896}, []),
        ({"world_warnings": ("node 0 runs 4 ranks on 2 cores",)}, ["node 0 runs 4 ranks"]),
    ],
)
def test_warnings(changes, expected):
    found = warnings(facts(**changes))
    assert len(found) == len(expected)
    for line, part in zip(found, expected, strict=True):
        assert part in line
        assert f"Warning: {line}" in banner(facts(**changes))


def test_the_event_is_json():
    event = json.loads(json.dumps(facts().as_event()))
    assert event["ranks"] == 4
    assert event["nodes"] == 1
    assert event["payload_bits"] == 111_776
