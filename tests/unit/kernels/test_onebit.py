"""The one-bit kernels against a scalar re-statement of docs/arithmetic.md: law 8, bit for bit."""

from __future__ import annotations

import importlib
import re
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisgd.buckets import columns_of
from mpisgd.kernels import jit, onebit
from tests import vectors
from tests.cases import BACKENDS, SIMULATED
from tests.unit.kernels import scalar

# The simulator starts 32 threads a column.
EXAMPLES = 6 if SIMULATED else 100
MAX_SIZE = 300 if SIMULATED else 2100
ALL = [pytest.param("reference"), *BACKENDS]


class Coded(NamedTuple):
    levels: np.ndarray
    codes: np.ndarray
    owed: np.ndarray


def kernels_of(backend: str) -> tuple[Any, Any, Any]:
    """encode, decode and decode_add of a backend."""
    names = ("encode", "decode", "decode_add")
    if backend == "reference":
        return tuple(getattr(onebit, f"{name}_reference") for name in names)
    module = {"cpu": "onebit", "cuda": "onebit_cuda"}[backend]
    kernels = importlib.import_module(f"mpisgd.kernels.{module}")
    return tuple(getattr(kernels, name) for name in names)


def call(backend: str, kernel: Any, inputs: list[np.ndarray], *outputs: vectors.Guarded) -> None:
    """Run a kernel on guarded outputs, on the device where there is one."""
    if backend != "cuda":
        kernel(*inputs, *(output.array for output in outputs))
    else:
        from numba import cuda

        whole = [cuda.to_device(output.bytes) for output in outputs]
        inside = [
            device[64:-64].view(output.array.dtype).reshape(output.shape)
            for device, output in zip(whole, outputs, strict=True)
        ]
        kernel(*(cuda.to_device(array) for array in inputs), *inside)
        for device, output in zip(whole, outputs, strict=True):
            output.bytes[:] = device.copy_to_host()
    for output in outputs:
        output.check()


def run_encode(backend: str, x: np.ndarray, e: np.ndarray, table: vectors.Table) -> Coded:
    """Encode into guarded buffers; only values inside the columns may change."""
    columns = columns_of(table.starts, table.stops, bits=1)
    owed = vectors.Guarded(table.size, np.float32)
    levels = vectors.Guarded((len(table.starts), 2), np.float32)
    codes = vectors.Guarded(columns.code_bytes, np.uint8)
    encode, _, _ = kernels_of(backend)
    # next_residual stands among the inputs in the signature.
    inputs = [x, e, table.starts, table.stops, columns.code_at]

    def reordered(x: Any, e: Any, starts: Any, stops: Any, code_at: Any, *out: Any) -> None:
        encode(x, e, out[0], starts, stops, code_at, out[1], out[2])

    call(backend, reordered, inputs, owed, levels, codes)
    untouched = vectors.outside(table)
    vectors.assert_same_bits(owed.array[untouched], owed.before[untouched])
    return Coded(levels.array, codes.array, owed.array)


def run_decode(
    backend: str, coded: Coded, table: vectors.Table, *, add_to: np.ndarray | None = None
) -> np.ndarray:
    """Decode, or add, into a guarded buffer; only values inside the columns may change."""
    columns = columns_of(table.starts, table.stops, bits=1)
    out = vectors.Guarded(table.size, np.float32)
    if add_to is not None:
        out.array[:] = add_to
        out.before[:] = add_to
    _, decode, decode_add = kernels_of(backend)
    inputs = [coded.levels, coded.codes, *columns[:3]]
    call(backend, decode if add_to is None else decode_add, inputs, out)
    untouched = vectors.outside(table)
    vectors.assert_same_bits(out.array[untouched], out.before[untouched])
    return out.array


def check_against_scalar(backend: str, x: np.ndarray, e: np.ndarray, table: vectors.Table) -> Coded:
    """Every column of `backend`'s encoding and decodings equals the scalar loop's."""
    columns = columns_of(table.starts, table.stops, bits=1)
    coded = run_encode(backend, x, e, table)
    decoded = run_decode(backend, coded, table)
    total = run_decode(backend, coded, table, add_to=x)
    for c, (start, stop) in enumerate(zip(table.starts, table.stops, strict=True)):
        levels, codes, owed = scalar.encode_column(x[start:stop], e[start:stop])
        at = columns.code_at[c]
        vectors.assert_same_bits(coded.levels[c], levels)
        vectors.assert_same_bits(coded.codes[at : at + codes.size], codes)
        vectors.assert_same_bits(coded.owed[start:stop], owed)
        sent = scalar.decode_column(levels, codes, int(stop - start))
        vectors.assert_same_bits(decoded[start:stop], sent)
        with np.errstate(all="ignore"):
            vectors.assert_same_bits(total[start:stop], x[start:stop] + sent)
    return coded


@pytest.mark.parametrize("backend", ALL)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_equals_the_definition_on_any_floats(backend: str, data: st.DataObject) -> None:
    # 70: crosses the edges of a byte and of the 32 partial sums
    table = data.draw(vectors.tables(max_size=70))
    x = data.draw(vectors.any_floats(table.size))
    e = data.draw(vectors.any_floats(table.size))
    check_against_scalar(backend, x, e, table)


@pytest.mark.parametrize("backend", ALL)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_equals_the_definition_on_columns_of_all_lengths(backend: str, data: st.DataObject) -> None:
    table = data.draw(vectors.tables(max_size=MAX_SIZE))
    check_against_scalar(backend, *data.draw(vectors.pairs(table.size)), table)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("size", "column"), [(100_003, 512), (65_537, 33), (40_001, 40_001)])
def test_equals_the_reference_on_large_odd_sizes(backend: str, size: int, column: int) -> None:
    if SIMULATED:
        size, column = size // 100, min(column, 100)
    rng = np.random.default_rng(size)
    x, e = (vectors.numbers(rng, size, "heavy") for _ in range(2))
    table = vectors.evenly(size, column)
    wanted = run_encode("reference", x, e, table)
    for got, want in zip(run_encode(backend, x, e, table), wanted, strict=True):
        vectors.assert_same_bits(got, want)
    vectors.assert_same_bits(
        run_decode(backend, wanted, table), run_decode("reference", wanted, table)
    )
    vectors.assert_same_bits(
        run_decode(backend, wanted, table, add_to=x),
        run_decode("reference", wanted, table, add_to=x),
    )


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("value", vectors.SPECIAL.tolist())
@pytest.mark.parametrize("at", [0, 31, 32, 36])
def test_a_special_value_anywhere(backend: str, value: float, at: int) -> None:
    x = np.linspace(-1, 1, 37, dtype=np.float32)
    x[at] = value
    coded = check_against_scalar(backend, x, np.zeros_like(x), vectors.evenly(37, 37))
    assert np.isfinite(coded.levels).all() == np.isfinite(value)
    assert (coded.codes[at // 8] >> at % 8) & 1 == (value >= 0)  # -0.0 is 1, NaN is 0


@pytest.mark.parametrize("backend", ALL)
def test_an_overflow_reaches_a_level(backend: str) -> None:
    largest = np.full(64, vectors.LARGEST, np.float32)
    table = vectors.evenly(64, 64)
    in_the_sum = check_against_scalar(backend, largest, np.zeros_like(largest), table)
    assert np.isinf(in_the_sum.levels[0, 1])
    in_one_value = check_against_scalar(backend, largest[:1], largest[:1], vectors.evenly(1, 1))
    assert np.isinf(in_one_value.levels[0, 1])


@pytest.mark.parametrize("backend", ALL)
def test_the_vector_that_cntk_gives(backend: str) -> None:
    x = np.array([0.5, -1, 0.25, 2], np.float32)
    coded = run_encode(backend, x, np.zeros_like(x), vectors.evenly(4, 4))
    np.testing.assert_allclose(coded.levels, [[-1, 0.916667]], rtol=1e-6)
    assert coded.codes.tolist() == [0b1101]
    np.testing.assert_allclose(coded.owed, [-0.416667, 0, -0.666667, 1.083333], atol=1e-6)


@pytest.mark.parametrize("backend", ALL)
def test_sums_are_canonical_and_in_fp32(backend: str) -> None:
    # 1 is lost in partial 0 (2^24 + 1 rounds to even) and kept in partial 1.
    x = np.zeros(33, np.float32)
    x[0], x[32] = 2.0**24, 1
    lost = run_encode(backend, x, np.zeros_like(x), vectors.evenly(33, 33))
    assert lost.levels[0, 1] == np.float32(2.0**24) / np.float32(33)
    # Value 16 meets value 0 in the first fold, value 1 in the last: 2^24 swallows one of the ones
    # if it meets it alone, but not both if they meet each other first.
    x[:] = 0
    x[0], x[1], x[17] = 2.0**24, 1, 1
    kept = run_encode(backend, x, np.zeros_like(x), vectors.evenly(33, 33))
    assert kept.levels[0, 1] == np.float32(2.0**24 + 2) / np.float32(33)


@pytest.mark.parametrize("backend", ALL)
def test_no_columns(backend: str) -> None:
    empty = vectors.Table(np.empty(0, np.int64), np.empty(0, np.int64), 3)
    x = np.ones(3, np.float32)
    coded = run_encode(backend, x, x, empty)
    vectors.assert_same_bits(run_decode(backend, coded, empty, add_to=x), x)


def test_a_second_call_compiles_nothing() -> None:
    for size in (5, 700):
        x = np.ones(size, np.float32)
        table = vectors.evenly(size, 512)
        coded = run_encode("cpu", x, x, table)
        run_decode("cpu", coded, table)
        run_decode("cpu", coded, table, add_to=x)
    for kernel in (onebit.encode, onebit.decode, onebit.decode_add):
        assert len(kernel.signatures) == 1


@pytest.mark.parametrize("name", ["encode", "decode_add"])
def test_nothing_is_contracted_to_a_fused_multiply_add(name: str) -> None:
    kernel = getattr(onebit, name)
    run_encode("cpu", np.ones(5, np.float32), np.ones(5, np.float32), vectors.evenly(5, 5))
    coded = Coded(np.ones((1, 2), np.float32), np.ones(1, np.uint8), np.ones(5, np.float32))
    run_decode("cpu", coded, vectors.evenly(5, 5), add_to=coded.owed)
    # Compiled anew: what came from the disk cache need not have kept its assembly.
    fresh = numba.njit(kernel.signatures[0], **jit._OPTIONS)(kernel.py_func)
    (assembly,) = fresh.inspect_asm().values()
    assert re.search(r"\bv?(add|sub)[ps]s\b|\bfadd\b", assembly), "no fp32 arithmetic found"
    assert not re.search(r"\bv?fn?m(add|sub)|\bfml[as]\b|\bfn?m(add|sub)\b", assembly)
