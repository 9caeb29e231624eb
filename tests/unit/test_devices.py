from __future__ import annotations

import re

import pytest

from mpisgd.devices import (
    check_alone,
    choose_device,
    choose_threads,
    crowding_warnings,
    sharing_group,
)


def test_one_gpu_for_each_local_rank() -> None:
    assert [choose_device("auto", 4, rank, 4, False) for rank in range(4)] == [
        "cuda:0",
        "cuda:1",
        "cuda:2",
        "cuda:3",
    ]


@pytest.mark.parametrize(
    ("requested", "gpus", "chosen"),
    [("auto", 0, "cpu"), ("cpu", 8, "cpu"), ("cuda", 2, "cuda:1"), ("cuda:0", 2, "cuda:0")],
)
def test_requests(requested: str, gpus: int, chosen: str) -> None:
    assert choose_device(requested, gpus, 1, 2, False) == chosen


@pytest.mark.parametrize(
    ("requested", "gpus", "said"),
    [
        ("cuda", 0, "torch sees no CUDA GPU"),
        ("cuda:1", 0, "torch sees no CUDA GPU"),
        ("cuda:7", 2, "'cuda:7' does not exist"),
        ("gpu", 2, "'gpu' is not known"),
        ("cpu:0", 2, "'cpu:0' is not known"),
        ("cuda:", 2, "'cuda:' is not known"),
        ("auto", 1, "2 ranks on one node share 1 GPU;"),
    ],
)
def test_refusals(requested: str, gpus: int, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        choose_device(requested, gpus, 0, 2, False)


def test_sharing_when_allowed() -> None:
    assert [choose_device("auto", 2, rank, 5, True) for rank in range(5)] == [
        "cuda:0",
        "cuda:1",
        "cuda:0",
        "cuda:1",
        "cuda:0",
    ]


def test_a_launcher_may_show_each_rank_its_own_gpu() -> None:
    visible = [["a"], ["b"], ["c"]]
    assert [sharing_group(visible, rank) for rank in range(3)] == [(0, 1)] * 3
    assert [sharing_group([["a", "b"]] * 3, rank) for rank in range(3)] == [(0, 3), (1, 3), (2, 3)]
    mixed = [["a", "b"], ["c"], ["a", "b"]]
    assert [sharing_group(mixed, rank) for rank in range(3)] == [(0, 2), (0, 1), (1, 2)]


def test_two_ranks_on_one_gpu() -> None:
    check_alone(["", "", ""], False)
    check_alone(["a", "b", ""], False)
    check_alone(["a", "b", "a"], True)
    with pytest.raises(ValueError, match="3 ranks on one node take only 2 different GPUs"):
        check_alone(["a", "b", "a"], False)


@pytest.mark.parametrize(
    ("requested", "variable", "affinities", "threads"),
    [
        (None, "", [range(8)] * 2, 4),
        (None, "", [range(2)] * 4, 1),
        (None, "", [[0], [1]], 1),  # bound, one core each
        (None, "", [[0, 1], [2, 3, 4, 5, 6, 7]], 2),  # never more than the rank may run on
        (None, "3", [range(8)] * 2, 3),
        (None, "5,2", [range(8)] * 2, 5),
        (None, "many", [range(8)] * 2, 4),
        (None, "0", [range(8)] * 2, 4),
        (7, "3", [range(8)] * 2, 7),
    ],
)
def test_threads(
    requested: int | None, variable: str, affinities: list[list[int]], threads: int
) -> None:
    assert choose_threads(requested, variable, affinities, 0) == threads


def test_no_threads_is_an_error() -> None:
    with pytest.raises(ValueError, match="threads: 0 was asked for"):
        choose_threads(0, "", [[0]], 0)


def test_crowding_warnings() -> None:
    assert crowding_warnings(0, [0, 1], [[0, 1]] * 2, [1, 1]) == []
    (crowded,) = crowding_warnings(1, [2, 3, 4], [[0, 1]] * 3, [1, 1, 1])
    assert crowded.startswith("node 1 runs 3 ranks on 2 cores")
    (bound,) = crowding_warnings(0, [0, 1], [[0], [1]], [1, 2])
    assert bound.startswith("rank 1 may run on 1 core but has 2 threads")
    (several,) = crowding_warnings(0, [4, 5], [[0, 2], [1]], [4, 4])
    assert several.startswith("rank 4 and others may run on 2 cores but has 4 threads")
