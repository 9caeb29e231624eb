"""Jobs that end alike, or well, on all ranks. Started by tests/launch.

python all_ranks.py TOKEN HOW: TOKEN only marks the processes.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from mpisgd.world import World


def exit_together(world: World) -> None:
    if world.is_main:
        sys.stderr.write("error: no such data\n")
    sys.exit(2)


def exit_after_an_exchange(world: World) -> None:
    pending = world.comm.Irecv(np.empty(4), source=(world.rank + 1) % world.size)
    sys.exit(2 if not pending.Test() else 0)


def raise_together(world: World) -> None:
    raise ValueError(f"wrong on {world.rank}")


def never_closed(world: World) -> None:
    world.dup()
    time.sleep(0.2 * world.rank)
    print(f"rank {world.rank} is done")


def ends_well(world: World) -> None:
    with world:
        if world.rank == 1:
            try:
                sys.exit(3)
            except SystemExit as caught:
                print(f"caught {caught.code}")
        world.barrier()
    if world.is_main:
        time.sleep(4)  # longer than the others' patience, were they to wait
        print("rank 0 is done")


def direct_exit_in_with(world: World) -> None:
    with world:
        if world.rank == 1:
            sys.stderr.write(f"failing at {time.time()}\n")
            raise SystemExit(3)
        world.comm.Barrier()


def early_name_of_exit(world: World) -> None:
    if world.rank == 1:
        sys.stderr.write(f"failing at {time.time()}\n")
        early_exit(3)
    world.comm.Barrier()


def stall(world: World) -> None:
    if world.rank == 1:
        sys.stderr.write(f"failing at {time.time() + 2}\n")  # the limit is 2 s
        time.sleep(3600)
    world.wait([world.comm.Irecv(np.empty(1), source=1)], "bucket 7")


if __name__ == "__main__":
    from sys import exit as early_exit

    globals()[sys.argv[2]](World(device="cpu"))
