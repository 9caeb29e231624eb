"""Fail together or not at all: checks that raise on every rank, with one text made of all parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from mpisgd.control import Control

T = TypeVar("T")
Items = Sequence[tuple[str, str]]


class SetupError(ValueError):
    """A rank could not be set up; raised on all ranks with the same text."""


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in words: "rank 1", "ranks 0, 2", "ranks 0-3, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = []
    for first, last in runs:
        if last - first < 2:
            parts += [str(rank) for rank in range(first, last + 1)]
        else:
            parts.append(f"{first}-{last}")
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(parts)}"


def first_difference(tables: Sequence[Items]) -> str | None:
    """The first place where the ranks' items differ, in words; None when they are all the same.

    Args:
        tables: for each rank, its (name, value) pairs in order.
    """
    for place in range(max(map(len, tables), default=0)):
        entries = [table[place] if place < len(table) else None for table in tables]
        if any(entry != entries[0] for entry in entries):
            return _difference(place, entries)
    return None


def _difference(place: int, entries: Sequence[tuple[str, str] | None]) -> str:
    names = {entry[0] if entry else None for entry in entries}
    if len(names) == 1:
        subject = str(names.pop())
        shown = [repr(entry[1]) if entry else "" for entry in entries]
    else:
        subject = f"item {place + 1}"
        shown = [f"{entry[0]} = {entry[1]!r}" if entry else "missing" for entry in entries]
    groups: dict[str, list[int]] = {}
    for rank, text in enumerate(shown):
        groups.setdefault(text, []).append(rank)
    parts = [f"{text} on {ranks_text(ranks)}" for text, ranks in groups.items()]
    return f"{subject} is {', '.join(parts[:-1])} and {parts[-1]}"


def joint_error(texts: Sequence[str | None]) -> str | None:
    """One text for the ranks' errors: the lowest failing rank's; None when no rank failed.

    The rank is named unless all ranks failed with the same text.
    """
    failed = [rank for rank, text in enumerate(texts) if text is not None]
    if not failed:
        return None
    text = texts[failed[0]]
    alike = len(set(texts)) == 1
    return text if alike else f"{text} (rank {failed[0]})"


class RankFailure(RuntimeError):
    """A check failed on some ranks; raised on all of them, naming those that failed."""


class Agreement(Control):
    """Checks that fail on all ranks or on none; collective, all of them."""

    def agree(self, ok: bool, message: str) -> None:
        """See `World.agree`."""
        flags = self.gather_numbers(np.array([not ok], np.int8), message)[:, 0]
        failing = np.flatnonzero(flags).tolist()
        if failing:
            first = self.gather_texts(message, message)[failing[0]]
            raise RankFailure(f"{first} (failed on {ranks_text(failing)})")

    def collect_errors(self, error: BaseException | None) -> None:
        """See `World.collect_errors`."""
        what = "the errors of the ranks"
        flags = self.gather_numbers(np.array([error is not None], np.int8), what)[:, 0]
        if not flags.any():
            return
        own = "" if error is None else str(error) or type(error).__name__
        texts = self.gather_texts(own, what)
        failed = [text if bad else None for text, bad in zip(texts, flags, strict=True)]
        raise SetupError(joint_error(failed)) from error

    def collect(self, make: Callable[[], T]) -> T:
        """What `make` returns, once it has raised no ValueError on any rank."""
        try:
            made = make()
        except ValueError as error:
            self.collect_errors(error)
            raise  # not reached: collect_errors raises on every rank
        self.collect_errors(None)
        return made

    def check_same(self, subject: str, items: Items) -> None:
        """See `World.check_same`."""
        text = json.dumps(list(items))
        what = f"a comparison of {subject}"
        digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
        # A rank that finds itself in all others knows that they find the same.
        if (self.gather_numbers(digest, what) == digest).all():
            return
        tables = [[(n, v) for n, v in json.loads(t)] for t in self.gather_texts(text, what)]
        raise ValueError(
            f"{subject}: {first_difference(tables)}; all ranks must have the same: start them "
            "with the same program, options and environment"
        )
