"""A job in which one rank fails at step 3 while the others wait for it. Started by tests/launch.

python one_rank.py TOKEN HOW [WAIT]: TOKEN only marks the processes; WAIT is `sum` (a wait of
this package) or `barrier` (a blocking MPI call).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np

from mpisgd.world import World


def fail(how: str) -> None:
    sys.stderr.write(f"failing at {time.time()}\n")
    if how == "raise":
        raise RuntimeError("the disk\nis on fire")
    if how == "exit":
        sys.exit(3)
    if how == "quit":
        quit(3)
    if how == "exit-text":
        sys.exit("no more paper")
    if how == "system-exit":
        raise SystemExit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "exit-thread":
        threading.Thread(target=sys.exit, args=(3,), name="saver").start()
    if how == "raise-thread":
        threading.Thread(target=int, args=("three",), name="saver").start()
    time.sleep(3600)


def main() -> None:
    how, wait = sys.argv[2], (sys.argv[3:] or ["sum"])[0]
    world = World(device="cpu")
    for step in range(6):
        if step == 3 and world.rank == world.size - 2:
            fail(how)
        if wait == "barrier":
            world.comm.Barrier()
        else:
            world.sum(np.ones(3))
    print("not reached")


main()
