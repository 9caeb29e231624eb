"""Name the rank that was killed: for launchers that only tell its process id.

A rank that is killed (by the kernel for want of memory, say) cannot speak, and MPICH's launcher
kills the others within milliseconds. So the first rank of each node starts this file as a small
process of its own that sleeps until a rank of the node dies without having said farewell, writes
one line with its number, and ends. Standard library only: it is not imported but run as a file.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping

# What ranks say: their number when they leave in order, or that the job ends and all is said.
_JOB_ENDS = b"job ends"


def process_names() -> str:
    """The name space of process ids: ranks in separate containers may not share one."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "the-only-one"


def start(address: str, pids: Mapping[int, int]) -> None:
    """Start the watching process.

    Args:
        address: a name for the socket on which it hears farewells, unique on this machine.
        pids: process id of each rank on this machine.
    """
    if not hasattr(os, "pidfd_open"):
        return  # before Linux 5.3, and elsewhere: nothing tells when another process dies
    ranks = [f"{rank}:{pid}" for rank, pid in pids.items()]
    command = [sys.executable, "-I", "-S", __file__, address, *ranks]
    with contextlib.suppress(OSError):  # without it only a killed rank remains unnamed
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)


def farewell(address: str, rank: int, *, job_ends: bool) -> None:
    """Say that this rank leaves in order, or that it ends the job and has said why."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.setblocking(False)
        line.sendto(_JOB_ENDS if job_ends else b"%d" % rank, f"\0{address}")


def _detach() -> None:
    """Go on in the background, in a session of its own, and let the rank that waits here go."""
    if os.fork():
        os._exit(0)
    os.setsid()


def _open_deaths(pids: Mapping[int, int]) -> dict[int, int]:
    """A descriptor that becomes readable when the process dies -> its rank."""
    deaths = {}
    for rank, pid in pids.items():
        with contextlib.suppress(ProcessLookupError):  # gone already: the launcher has seen it
            deaths[os.pidfd_open(pid)] = rank
    return deaths


def _watch(line: socket.socket, deaths: dict[int, int]) -> int | None:
    """The first rank that dies without a farewell; None if there is none."""
    poll = select.epoll()  # reports deaths in the order in which they happened
    for death in deaths:
        poll.register(death, select.EPOLLIN)
    said: set[bytes] = set()
    while deaths:
        for death, _ in poll.poll():
            with contextlib.suppress(BlockingIOError):
                while True:
                    said.add(line.recv(64))
            if _JOB_ENDS in said:
                return None
            poll.unregister(death)
            rank = deaths.pop(death)
            if b"%d" % rank not in said:
                return rank
    return None


def main() -> None:
    """Watch the ranks given as `ADDRESS RANK:PID RANK:PID` and so on."""
    pids = {int(rank): int(pid) for rank, _, pid in (a.partition(":") for a in sys.argv[2:])}
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    line.setblocking(False)
    line.bind(f"\0{sys.argv[1]}")  # before anyone can say farewell
    deaths = _open_deaths(pids)
    _detach()
    rank = _watch(line, deaths)
    if rank is not None:
        host = socket.gethostname()
        text = (
            f"[rank {rank}] died without a word (killed?), the first on {host}: pid {pids[rank]}\n"
        )
        os.write(2, text.encode())


if __name__ == "__main__":
    main()
