"""What ranks say when they differ: one text from every rank's part. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

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
