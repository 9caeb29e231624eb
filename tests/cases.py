"""The members of every family, for the suites that test their laws: joining costs a line here."""

from __future__ import annotations

import os

import pytest

from mpisgd.quant.base import AbstractQuantizer
from mpisgd.quant.float32 import Float32
from mpisgd.quant.onebit import OneBit

QUANTIZER_CASES: list[AbstractQuantizer] = [Float32(), OneBit()]

# Set for a whole process: tests/unit/kernels/test_simulator.py starts one.
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"


def has_cuda() -> bool:
    """Whether the CUDA kernels can run here, on a device or simulated."""
    from numba import cuda

    return bool(cuda.is_available())


needs_cuda = pytest.mark.skipif(
    not has_cuda(), reason="no CUDA device (and NUMBA_ENABLE_CUDASIM is not 1)"
)
BACKENDS = [pytest.param("cpu"), pytest.param("cuda", marks=needs_cuda)]
