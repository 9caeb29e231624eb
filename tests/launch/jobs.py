"""Start a job under its own mpiexec, with a time limit, and see that nothing of it is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAILING = ROOT / "tests" / "mpi" / "failing"

OPENMPI_PYTHON = os.environ.get("MPISGD_OPENMPI_PYTHON", "")
_WHY_NOT = "MPISGD_OPENMPI_PYTHON does not name the Python of an environment with Open MPI"
WHEELS = [
    pytest.param(sys.executable, id="default"),
    pytest.param(
        OPENMPI_PYTHON, id="openmpi", marks=pytest.mark.skipif(not OPENMPI_PYTHON, reason=_WHY_NOT)
    ),
]

# Open MPI refuses root and more ranks than cores without these.
_SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@dataclass
class Ended:
    """How a job ended."""

    code: int
    output: str  # stdout and stderr together
    ended_at: float
    left_running: list[str]

    def seconds_after_failure(self) -> float:
        """From the first `failing at …` line of tests/mpi/failing to the end of mpiexec."""
        times = re.findall(r"failing at ([0-9.]+)", self.output)
        return self.ended_at - min(map(float, times))


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **_SETTINGS, "PYTHONPATH": path, **(extra or {})}


def mpiexec_of(python: str) -> str:
    return str(Path(python).parent / "mpiexec")


def run_job(
    python: str,
    script: Path,
    *arguments: str,
    ranks: int = 3,
    mpiexec: str | None = None,
    limit_s: float = 120,
    extra: dict[str, str] | None = None,
) -> Ended:
    """Run `script TOKEN arguments` on `ranks` ranks; 0 ranks: without mpiexec."""
    token = f"mpisgd-{uuid.uuid4().hex}"
    launcher = [mpiexec or mpiexec_of(python), "-n", str(ranks)] if ranks else []
    process = subprocess.Popen(
        [*launcher, python, str(script), token, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(extra),
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _kill(process, token)
        output, _ = process.communicate()
        pytest.fail(f"the job did not end within {limit_s} s; its output:\n{output}")
    ended_at = time.time()
    left = _running(token)
    _kill_pids(left)
    return Ended(process.returncode, output, ended_at, [pid for pid in left])


def _running(token: str) -> list[str]:
    """Process ids of this job that still run after a moment to disappear."""
    for _ in range(20):
        pids = _pids(token)
        if not pids:
            break
        time.sleep(0.1)
    return pids


def _pids(token: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if token in (entry / "cmdline").read_text(errors="replace"):
                    found.append(entry.name)
            except OSError:
                continue  # it ended meanwhile
    return found


def _kill(process: subprocess.Popen[str], token: str) -> None:
    _kill_pids(_pids(token))
    process.kill()


def _kill_pids(pids: list[str]) -> None:
    for pid in pids:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
