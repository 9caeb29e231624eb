"""Copying fp32 columns, and the test for NaN and infinities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisgd.buckets import columns_of
from mpisgd.kernels import float32
from tests import vectors

NOT_FINITE = [np.nan, -np.nan, np.inf, -np.inf]


@given(data=st.data())
def test_all_finite_agrees_with_numpy(data: st.DataObject) -> None:
    values = data.draw(vectors.any_floats(data.draw(st.integers(0, 70))))
    assert float32.all_finite(values) == np.isfinite(values).all()


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("size", [1, 17, 2100])
def test_one_value_that_is_not_finite_is_found_anywhere(value: float, size: int) -> None:
    values = np.full(size, vectors.LARGEST, np.float32)
    assert float32.all_finite(values)
    for at in {0, size // 2, size - 1}:
        spoiled = values.copy()
        spoiled[at] = value
        assert not float32.all_finite(spoiled)


def test_a_signalling_nan_is_found() -> None:
    assert not float32.all_finite(np.array([0x7F800001], np.uint32).view(np.float32))


@given(data=st.data())
def test_pack_and_unpack_move_every_column(data: st.DataObject) -> None:
    table = data.draw(vectors.tables())
    x, e = data.draw(vectors.pairs(table.size))
    starts, stops, code_at, code_bytes = columns_of(table.starts, table.stops, bits=32)
    plain, owed = (vectors.Guarded(code_bytes // 4, np.float32) for _ in range(2))
    kept, out, total = (vectors.Guarded(table.size, np.float32) for _ in range(3))
    total.array[:] = total.before[:] = e
    float32.pack(x, starts, stops, code_at, plain.array)
    float32.pack_owed(x, e, kept.array, starts, stops, code_at, owed.array)
    float32.unpack(plain.array, starts, stops, code_at, out.array)
    float32.unpack_add(plain.array, starts, stops, code_at, total.array)
    for buffer in (plain, owed, kept, out, total):
        buffer.check()
    free = vectors.outside(table)
    vectors.assert_same_bits(out.array, np.where(free, out.before, x))
    vectors.assert_same_bits(total.array, np.where(free, total.before, e + x))
    vectors.assert_same_bits(kept.array, np.where(free, kept.before, np.float32(0)))
    for start, stop, at in zip(starts, stops, code_at // 4, strict=True):
        vectors.assert_same_bits(owed.array[at : at + stop - start], (x + e)[start:stop])


def test_a_second_call_compiles_nothing() -> None:
    for size in (1, 600):
        values = np.ones(size, np.float32)
        table = vectors.evenly(size, 512)
        columns = columns_of(table.starts, table.stops, bits=32)
        float32.all_finite(values)
        float32.pack(values, *columns[:3], values.copy())
        float32.pack_owed(values, values, values.copy(), *columns[:3], values.copy())
        float32.unpack(values, *columns[:3], values.copy())
        float32.unpack_add(values, *columns[:3], values.copy())
    for name in ("all_finite", "pack", "pack_owed", "unpack", "unpack_add"):
        assert len(getattr(float32, name).signatures) == 1
