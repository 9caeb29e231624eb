"""A rank that fails before it has joined the others. Started by tests/launch.

python early.py TOKEN HOW: TOKEN only marks the processes.
"""

from __future__ import annotations

import os
import sys
import time

from mpisgd.launch import launched_rank
from mpisgd.train import main


class NoTorch:
    """Makes `import torch` fail, as a missing library of one node does."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            raise ImportError("libnuma.so.1: cannot open shared object file")


if __name__ == "__main__":
    if launched_rank(os.environ) == 1:
        sys.stderr.write(f"failing at {time.time()}\n")
        if sys.argv[2] == "before_mpi":
            sys.exit(3)
        sys.meta_path.insert(0, NoTorch())
    main(["--data", "digits", "--max-samples", "300"])
