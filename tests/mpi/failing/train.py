"""The train command in which rank 1 fails in its fourth minibatch. Started by tests/launch.

python train.py TOKEN HOW OPTIONS…: TOKEN only marks the processes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from mpisgd import train
from mpisgd.tasks.classification import Classification


class Failing(Classification):
    def minibatch(self, k: int, **options: Any) -> Any:
        if k == 3 and options["shard"][0] == 1:
            sys.stderr.write(f"failing at {time.time()}\n")
            sys.stderr.flush()
            if sys.argv[2] == "raise":
                raise ValueError("this sample is unreadable")
            if sys.argv[2] == "exit":
                sys.exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().minibatch(k, **options)


if __name__ == "__main__":
    import mpisgd.job

    mpisgd.job.Classification = Failing  # type: ignore[misc]
    sys.exit(train.main(sys.argv[3:]))
