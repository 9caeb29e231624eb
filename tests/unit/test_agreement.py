from __future__ import annotations

import pytest

from mpisgd.agreement import first_difference, joint_error, ranks_text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([1], "rank 1"),
        ([0, 1], "ranks 0, 1"),
        ([0, 2], "ranks 0, 2"),
        ([0, 1, 2, 3, 5], "ranks 0-3, 5"),
        (list(range(64)), "ranks 0-63"),
    ],
)
def test_ranks_in_words(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


SAME = [("lr", "0.1"), ("batch", "128")]


def test_no_difference() -> None:
    assert first_difference([]) is None
    assert first_difference([[], []]) is None
    assert first_difference([SAME, list(SAME), SAME]) is None


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ([("lr", "0.1"), ("batch", "64")], "batch is '128' on ranks 0, 2 and '64' on rank 1"),
        ([("lr", "0.2"), ("batch", "64")], "lr is '0.1' on ranks 0, 2 and '0.2' on rank 1"),
        ([("lr", "0.1")], "item 2 is batch = '128' on ranks 0, 2 and missing on rank 1"),
        (
            [("batch", "128"), ("lr", "0.1")],
            "item 1 is lr = '0.1' on ranks 0, 2 and batch = '128' on rank 1",
        ),
        ([*SAME, ("q", "1")], "item 3 is missing on ranks 0, 2 and q = '1' on rank 1"),
    ],
)
def test_the_first_difference_is_named(other: list[tuple[str, str]], text: str) -> None:
    assert first_difference([SAME, other, SAME]) == text


def test_three_values() -> None:
    tables = [[("Python", version)] for version in ("3.10", "3.11", "3.12", "3.11")]
    assert first_difference(tables) == (
        "Python is '3.10' on rank 0, '3.11' on ranks 1, 3 and '3.12' on rank 2"
    )


@pytest.mark.parametrize(
    ("texts", "joint"),
    [
        ([None, None], None),
        (["no file", "no file"], "no file"),
        ([None, "no file", "no disk"], "no file (rank 1)"),
        (["no file", "no disk"], "no file (rank 0)"),
    ],
)
def test_joint_error(texts: list[str | None], joint: str | None) -> None:
    assert joint_error(texts) == joint
