"""Downloads data sets: `python -m mpisgd.data fetch cifar10`.

Under mpiexec one rank of each node downloads, and all ranks end alike.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from mpisgd.launch import launched_rank, launched_size

from .choice import DIRECTORY_VARIABLE, data_directory
from .download import FETCHABLE, FetchError, check_name, fetch

if TYPE_CHECKING:
    from mpisgd.world import World

PROGRAM = "mpisgd.data"
MIB = float(1 << 20)
_POLL_S = 0.2


class ProgressLine:
    """One line on stderr, rewritten in place on a terminal; elsewhere only the finished files."""

    def __init__(self, *, speaks: bool = True) -> None:
        """Nothing is shown yet, and never if not `speaks`."""
        self._speaks = speaks
        self._terminal = sys.stderr.isatty()
        self._shown = 0.0

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """Show that `done` of `total` bytes of the file have come; `total` None: unknown."""
        finished = done == total
        now = time.monotonic()
        if not self._speaks or (not finished and (not self._terminal or now - self._shown < 0.2)):
            return
        self._shown = now
        of_all = f" of {total / MIB:.1f}" if total else ""
        line = f"fetch: {name} {done / MIB:.1f}{of_all} MiB"
        if self._terminal:
            line = f"\r{line}"
        sys.stderr.write(line if self._terminal and not finished else f"{line}\n")
        sys.stderr.flush()


def _speaks() -> bool:
    """Of the processes that a launcher started, only the first talks to the user."""
    return launched_rank(os.environ) == 0


class _Parser(argparse.ArgumentParser):
    """Answers and complains on one rank only, and complains in one line."""

    def print_help(self, file: Any = None) -> None:
        """Show the help."""
        if _speaks():
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        text = f"{PROGRAM}: error: {message} (see {self.prog} --help)\n"
        self.exit(2, text if _speaks() else None)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = _Parser(f"python -m {PROGRAM}", description=__doc__, allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "fetch",
        help="download a data set",
        description="Download a data set and check it, unless it is there already. Under mpiexec"
        " one rank of each node downloads.",
        epilog=f"example: python -m {PROGRAM} fetch cifar10 --data-dir /scratch/data",
        allow_abbrev=False,
    )
    command.add_argument("name", metavar="NAME", help=f"the set: {' or '.join(FETCHABLE)}")
    command.add_argument(
        "--data-dir",
        type=Path,
        metavar="PATH",
        help=f"where to put it (default: the environment's {DIRECTORY_VARIABLE}, else ./data)",
    )
    command.add_argument(
        "--url",
        metavar="URL",
        help="a mirror: of cifar10 the .tar.gz itself, of fashion-mnist the folder",
    )
    return top


def once_per_node(world: World, download: Callable[[], Path]) -> Path | None:
    """Run `download` on the first rank of every node while the others wait. Collective.

    Returns:
        What it returned; None on the other ranks.

    Raises:
        SetupError: on all ranks, if it failed on any node.
    """
    place: list[Path] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            place.append(download())
        except (FetchError, ValueError) as error:
            failed.append(error)

    worker = threading.Thread(target=work) if world.local_rank == 0 else None
    if worker is not None:
        worker.start()
    # A download may take longer than any wait for a message may: the ranks meet again and again.
    while world.sum(np.array([worker is not None and worker.is_alive()], np.int64))[0]:
        time.sleep(_POLL_S)
    world.collect_errors(failed[0] if failed else None)
    return place[0] if place else None


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, read and checked; exits with code 2 if it asks for what is not there."""
    reader = parser()
    options = reader.parse_args(argv)
    try:
        check_name(options.name)
    except ValueError as error:
        reader.error(str(error))
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0: the data is there, 1: one line on stderr says why it is not."""
    options = _options(argv)
    speaks = _speaks()

    def download() -> Path:
        directory = data_directory(options.data_dir)
        return fetch(options.name, directory, url=options.url, progress=ProgressLine(speaks=speaks))

    try:
        if launched_size(os.environ) == 1:
            place: Path | None = download()
        else:
            from mpisgd.world import World

            with World(device="cpu", threads=1) as world:
                place = once_per_node(world, download)
    except (FetchError, ValueError) as error:  # under mpiexec the same on all ranks
        if speaks:
            # A progress line may still be open.
            print(f"\n{error}" if sys.stderr.isatty() else error, file=sys.stderr)
        return 1
    if speaks:
        print(f"{options.name}: in {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
