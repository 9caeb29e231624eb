"""Downloads data sets: `python -m mpisgd.data fetch cifar10`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .choice import DIRECTORY_VARIABLE, data_directory
from .download import FETCHABLE, FetchError, fetch

MIB = float(1 << 20)


class ProgressLine:
    """One line on stderr, rewritten in place on a terminal; elsewhere only the finished files."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        self._terminal = sys.stderr.isatty()
        self._shown = 0.0

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """Show that `done` of `total` bytes of the file have come; `total` None: unknown."""
        finished = done == total
        now = time.monotonic()
        if not finished and (not self._terminal or now - self._shown < 0.2):
            return
        self._shown = now
        of_all = f" of {total / MIB:.1f}" if total else ""
        line = f"fetch: {name} {done / MIB:.1f}{of_all} MiB"
        if self._terminal:
            line = f"\r{line}"
        sys.stderr.write(line if self._terminal and not finished else f"{line}\n")
        sys.stderr.flush()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser("python -m mpisgd.data", description=__doc__, allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True)
    command = commands.add_parser("fetch", help="download a data set", allow_abbrev=False)
    command.add_argument("name", choices=FETCHABLE)
    command.add_argument(
        "--data-dir",
        type=Path,
        help=f"where to put it (default: the environment's {DIRECTORY_VARIABLE}, else ./data)",
    )
    command.add_argument(
        "--url", help="a mirror: of cifar10 the .tar.gz itself, of fashion-mnist the folder"
    )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0: the data is there, 1: one line on stderr says why it is not."""
    options = parser().parse_args(argv)
    try:
        place = fetch(
            options.name,
            data_directory(options.data_dir),
            url=options.url,
            progress=ProgressLine(),
        )
    except (FetchError, ValueError) as error:
        # A progress line may still be open.
        print(f"\n{error}" if sys.stderr.isatty() else error, file=sys.stderr)
        return 1
    print(f"{options.name}: in {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
