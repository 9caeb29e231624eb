"""From the `--data` option to a loaded set, `auto` included."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .members import DATA, VECTOR_DATA, WITHOUT_FILES

if TYPE_CHECKING:
    from .base import AbstractDataset

DIRECTORY_VARIABLE = "MPISGD_DATA"


class Loaded(NamedTuple):
    """A data set, and what the user should be told about the choice."""

    dataset: AbstractDataset
    hint: str  # "" unless `auto` had to do without CIFAR-10


def data_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """Where data is looked for: `given`, else the environment's MPISGD_DATA, else ./data."""
    return Path(given or os.environ.get(DIRECTORY_VARIABLE) or "data")


def load(
    name: str = "auto", *, data_dir: str | os.PathLike[str] | None = None, kind: str = "images"
) -> Loaded:
    """Load a data set into host memory.

    Args:
        name: A name of DATA (or of VECTOR_DATA, for vectors), or "auto": CIFAR-10 if the directory
            has it, in any of its layouts, else the embedded digits; for vectors the synthetic ones.
        data_dir: A directory, or the .tar.gz of CIFAR-10; None: see `data_directory`.
        kind: What the model reads, "images" or "vectors" (`mpisgd.models.kind_of`).

    Raises:
        ValueError: for an unknown name, a set of the other kind, or files that are short or
            corrupt.
        FileNotFoundError: if the data is not there, with the command that gets it; or if a
            directory was named, by `data_dir` or MPISGD_DATA, that does not exist.
    """
    directory = data_directory(data_dir)
    _check_named(directory, given=data_dir is not None, needed=_needs_files(name, kind))
    hint = ""
    if name == "auto":
        name, hint = _choose(directory, kind)
    members = VECTOR_DATA if kind == "vectors" else DATA
    if name not in members:
        raise ValueError(
            f"data: {name!r} has no {kind}; the sets that have are auto, {', '.join(members)};"
            " choose one of them with --data, or another --model"
        )
    return Loaded(members[name](directory), hint)


def _needs_files(name: str, kind: str) -> bool:
    return kind == "images" and (name == "auto" or name in DATA) and name not in WITHOUT_FILES


def _check_named(directory: Path, *, given: bool, needed: bool) -> None:
    """Refuse a directory that somebody named and that is not there; ./data may be missing.

    The environment's is for all runs, so one that reads no files does not look at it.
    """
    named = "--data-dir" if given else DIRECTORY_VARIABLE
    if not given and not (needed and os.environ.get(DIRECTORY_VARIABLE)):
        return
    if not directory.exists():
        repair = "leave it out" if given else "unset it"
        raise FileNotFoundError(
            f"data directory: {directory} does not exist; wanted a directory with data or the"
            f" .tar.gz of CIFAR-10; correct {named} or {repair}"
        )


def _choose(directory: Path, kind: str) -> tuple[str, str]:
    if kind == "vectors":
        return "synthetic", ""
    # Imported here: finding the files needs no torch, but reading them does, and the module does
    # both.
    from . import cifar10

    if cifar10.find(directory) is not None:
        return "cifar10", ""
    return "digits", (
        f"no CIFAR-10 under {directory}, using the embedded digits; "
        "get it with: python -m mpisgd.data fetch cifar10"
    )
