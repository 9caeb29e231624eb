"""Train a model on the ranks that mpiexec starts.

    mpiexec -n 4 python -m mpisgd.train --quant 1 --warmup 50000   # the main job
    mpiexec -n 4 python -m mpisgd.train --quant 32                 # without quantization
    python -m mpisgd.train --epochs 2                              # one process, no mpiexec
    python -m mpisgd.train --help                                  # all options

Exit codes: 0 done; 2 the options, the files or the launch cannot be honoured (one line on stderr
says why); 1 a failure while training.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpisgd.config import PROGRAM, Answer, ConfigError, Options, parse
from mpisgd.failures import release
from mpisgd.launch import launched_rank
from mpisgd.start import join

if TYPE_CHECKING:
    from mpisgd.trainer import Trainer
    from mpisgd.world import World

EXIT_REFUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    speaks = launched_rank(os.environ) == 0
    options: Options | None = None
    problem: ConfigError | None = None
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
    except Answer as answer:
        if speaks:
            sys.stdout.write(str(answer))
            sys.stdout.flush()
        return 0
    except ConfigError as error:
        problem = error
    try:
        world, trainer = _prepare(options, problem)
    except ValueError as error:  # raised on all ranks alike
        if speaks:
            sys.stderr.write(f"{PROGRAM}: error: {one_line(str(error))}\n")
            sys.stderr.flush()
        return EXIT_REFUSED
    with world:
        try:
            trainer.run()
        finally:
            trainer.reporter.close()  # local: it gives the terminal back
    return 0


def one_line(text: str, limit: int = 2000) -> str:
    """`text` as one printable line: values that a user typed may hold anything."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= limit else f"{shown[:limit]}..."


def _prepare(options: Options | None, problem: ConfigError | None) -> tuple[World, Trainer]:
    """Join the other ranks, and get ready with them, or fail with them. Collective.

    Raises:
        ValueError: on all ranks, with the same text.
    """
    # MPI first: a rank on which torch cannot be imported then ends the job.
    lifeline = join()
    # Imported here: torch takes seconds to import, --help should not.
    from mpisgd.job import prepare
    from mpisgd.world import World

    if options is None:
        # The options are wrong at least here: a world is needed only to tell the others.
        world = World(device="cpu", threads=1)
    else:
        world = World(
            device=options.device,
            threads=options.threads,
            allow_gpu_sharing=options.allow_gpu_sharing,
        )
    release(lifeline)
    world.collect_errors(problem)
    assert options is not None  # else collect_errors has raised
    return world, prepare(world, options)


if __name__ == "__main__":
    sys.exit(main())
