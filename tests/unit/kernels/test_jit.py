"""The options every kernel is compiled with, and that no kernel goes past them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numba.core.caching
import numpy as np
import pytest

import mpisgd.kernels
from mpisgd.kernels import jit

FILES = sorted(Path(mpisgd.kernels.__file__).resolve().parent.glob("*.py"))
# Where numba's decorators may be named; every other kernel file takes them from here.
OWNERS = {"jit.py", "stack.py", "warp_cuda.py"}


def fast_math(tree: ast.AST) -> list[ast.expr]:
    """Every value given to an option called fastmath, as a keyword or in a dict."""
    values: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "fastmath":
            values.append(node.value)
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "fastmath":
                    values.append(value)
    return values


def is_off(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_fastmath_is_nowhere_on(path: Path) -> None:
    assert all(is_off(value) for value in fast_math(ast.parse(path.read_text())))


@pytest.mark.parametrize("text", ["njit(fastmath=True)", "o = {'fastmath': {'contract'}}"])
def test_the_search_for_fastmath_finds_it(text: str) -> None:
    assert not all(is_off(value) for value in fast_math(ast.parse(text)))


def test_numba_is_named_only_where_its_options_are_set() -> None:
    for path in FILES:
        names = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom) and node.level == 0
                else [alias.name for alias in node.names]
            )
        }
        assert "numba" not in names or path.name in OWNERS, path.name


def halves(values: np.ndarray) -> None:
    for i in range(values.size):
        values[i] = values[i] / 2


def test_a_kernel_is_cached_where_it_can_be() -> None:
    compiled = jit.kernel(halves)
    assert type(compiled._cache).__name__ != "NullCache"


def test_without_a_place_for_the_cache_a_kernel_still_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(cache=True)(halves)
    compiled = jit.kernel(halves)
    assert type(compiled._cache).__name__ == "NullCache"
    values = np.array([2, 6], np.float32)
    compiled(values)
    assert values.tolist() == [1, 3]


def test_division_by_zero_gives_nan_and_raises_nothing() -> None:
    def divide(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        out[0] = x[0] / y[0]

    out = np.ones(1, np.float32)
    jit.kernel(divide)(np.zeros(1, np.float32), np.zeros(1, np.float32), out)
    assert np.isnan(out[0])


def test_importing_the_package_loads_no_numba_and_the_cpu_kernels_no_cuda() -> None:
    code = (
        "import sys, mpisgd.kernels; assert 'numba' not in sys.modules;"
        "import mpisgd.kernels.onebit; assert 'mpisgd.kernels.warp_cuda' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
