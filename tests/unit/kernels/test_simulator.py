"""The CUDA kernels in numba's simulator, in a process of its own: the switch is per process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import SIMULATED

HERE = Path(__file__).parent


@pytest.mark.timeout(300)  # 32 threads a column: slow where other work shares the cores
@pytest.mark.skipif(SIMULATED, reason="this is the simulator already")
def test_the_cuda_kernels_equal_the_definition_in_the_simulator() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "cuda", str(HERE / "test_onebit.py")],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed.group(1)) >= 50, done.stdout
    assert "skipped" not in done.stdout
