"""Quantizers know numpy arrays only, and are compiled before the first step."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["onebit", "float32"])
def test_quantizers_import_no_torch_and_no_mpi(module: str) -> None:
    code = (
        f"import sys, mpisgd.quant.{module};"
        "loaded = {'torch', 'mpi4py', 'mpi4py.MPI'} & set(sys.modules); assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_registry_lists_its_names_without_numba() -> None:
    code = (
        "import sys, mpisgd.quant; assert sorted(mpisgd.quant.QUANTIZERS) == [1, 32];"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_warm_up_compiles_all_that_encode_and_decode_need() -> None:
    # In a process of its own, where nothing is compiled yet.
    code = """
import numpy as np
from mpisgd.quant import QUANTIZERS
from mpisgd.kernels import float32, onebit
for quantizer in QUANTIZERS.values():
    quantizer().warm_up()
def signatures():
    kernels = [f for m in (float32, onebit) for f in vars(m).values() if hasattr(f, "signatures")]
    return [(f.__name__, len(f.signatures)) for f in kernels]
before = signatures()
assert sum(count for _, count in before) >= 8, before
x, e, owed = (np.ones(700, np.float32) for _ in range(3))
for quantizer in (q() for q in QUANTIZERS.values()):
    columns = quantizer.columns(np.array([0, 512]), np.array([512, 700]))
    payload = np.zeros(quantizer.payload_bytes(columns), np.uint8)
    quantizer.encode(x, columns, residual=e, next_residual=owed, payload=payload)
    for add in (False, True):
        quantizer.decode(payload, columns, out=x, add=add)
    if quantizer.bits == 32:
        quantizer.encode(x, columns, residual=None, next_residual=None, payload=payload)
assert signatures() == before, signatures()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=110)
