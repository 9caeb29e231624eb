"""What every quantizer promises, over every registered one: laws 1 to 3, sizes, buffers, NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisgd.buckets import Columns, columns_of
from mpisgd.quant import QUANTIZERS
from mpisgd.quant.base import AbstractQuantizer
from tests import vectors
from tests.cases import QUANTIZER_CASES

every_quantizer = pytest.mark.parametrize("quantizer", QUANTIZER_CASES, ids=lambda q: repr(q.bits))


def encode(
    quantizer: AbstractQuantizer, x: np.ndarray, e: np.ndarray, columns: Columns
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Payload, next residual and verdict, from guarded buffers that held garbage."""
    payload = vectors.Guarded(quantizer.payload_bytes(columns), np.uint8)
    owed = vectors.Guarded(x.size, np.float32)
    before = x.copy(), e.copy()
    finite = quantizer.encode(
        x, columns, residual=e, next_residual=owed.array, payload=payload.array
    )
    payload.check()
    owed.check()
    for array, copy in zip((x, e), before, strict=True):
        vectors.assert_same_bits(array, copy)  # inputs are only read
    free = vectors.outside(vectors.Table(columns.starts, columns.stops, x.size))
    vectors.assert_same_bits(owed.array[free], owed.before[free])
    assert isinstance(finite, bool)
    return payload.array, owed.array, finite


def decode(
    quantizer: AbstractQuantizer, payload: np.ndarray, columns: Columns, size: int
) -> np.ndarray:
    out = vectors.Guarded(size, np.float32)
    quantizer.decode(payload, columns, out=out.array)
    out.check()
    return out.array


def columns_for(quantizer: AbstractQuantizer, table: vectors.Table) -> Columns:
    return quantizer.columns(table.starts, table.stops)


def test_every_registered_quantizer_has_a_case() -> None:
    assert {type(q) for q in QUANTIZER_CASES} == set(QUANTIZERS.values())
    for bits, quantizer in QUANTIZERS.items():
        assert quantizer.bits == bits


@every_quantizer
@given(data=st.data())
def test_conservation(quantizer: AbstractQuantizer, data: st.DataObject) -> None:
    # law 1: decoded + next residual == values + residual, up to float32 rounding
    table = data.draw(vectors.tables())
    x, e = data.draw(vectors.pairs(table.size))
    columns = columns_for(quantizer, table)
    payload, owed, finite = encode(quantizer, x, e, columns)
    sent = decode(quantizer, payload, columns, table.size)
    assert finite
    for start, stop in zip(table.starts, table.stops, strict=True):
        column = slice(start, stop)
        debt = (x[column] + e[column]).astype(np.float64)
        rounding = 2.0**-22 * np.abs(debt).max() + 2.0**-148
        kept = sent[column].astype(np.float64) + owed[column]
        np.testing.assert_allclose(kept, debt, rtol=0, atol=rounding)


@every_quantizer
@given(data=st.data())
def test_the_debt_shrinks(quantizer: AbstractQuantizer, data: st.DataObject) -> None:
    # law 2: a code that sends nothing and keeps everything conserves perfectly, and fails here
    table = data.draw(vectors.tables())
    x, e = data.draw(vectors.pairs(table.size))
    _, owed, _ = encode(quantizer, x, e, columns_for(quantizer, table))
    for start, stop in zip(table.starts, table.stops, strict=True):
        debt = (x[start:stop] + e[start:stop]).astype(np.float64)
        kept = owed[start:stop].astype(np.float64)
        square = (debt**2).sum()
        bound = square - np.abs(debt).sum() ** 2 / debt.size
        # rounding of 2^-24 a value in the levels, and of the smallest denormal in each residual
        tiny = 1e-6 * square + debt.size * 2.0**-296
        assert (kept**2).sum() <= bound + tiny


@every_quantizer
@given(data=st.data())
def test_no_column_sees_another(quantizer: AbstractQuantizer, data: st.DataObject) -> None:
    # law 3
    table = data.draw(vectors.tables())
    x, e = data.draw(vectors.pairs(table.size))
    together = columns_for(quantizer, table)
    payload, owed, _ = encode(quantizer, x, e, together)
    levels_at = 4 * quantizer.levels_per_column
    codes = payload[levels_at * len(table.starts) :]
    for c, (start, stop) in enumerate(zip(table.starts, table.stops, strict=True)):
        alone = quantizer.columns(np.zeros(1, np.int64), np.array([stop - start]))
        own, own_owed, _ = encode(quantizer, x[start:stop].copy(), e[start:stop].copy(), alone)
        vectors.assert_same_bits(owed[start:stop], own_owed)
        at = together.code_at[c]
        vectors.assert_same_bits(payload[levels_at * c : levels_at * (c + 1)], own[:levels_at])
        vectors.assert_same_bits(codes[at : at + alone.code_bytes], own[levels_at:])


@every_quantizer
@given(data=st.data())
def test_adding_is_decoding_and_then_adding(
    quantizer: AbstractQuantizer, data: st.DataObject
) -> None:
    table = data.draw(vectors.tables())
    x, e = data.draw(vectors.pairs(table.size))
    columns = columns_for(quantizer, table)
    payload, _, _ = encode(quantizer, x, e, columns)
    total = vectors.Guarded(table.size, np.float32)
    total.array[:] = e
    quantizer.decode(payload, columns, out=total.array, add=True)
    total.check()
    sent = decode(quantizer, payload, columns, table.size)
    wanted = np.where(vectors.outside(table), e, e + sent)
    vectors.assert_same_bits(total.array, wanted)


@every_quantizer
@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 31, 32, 33, 511, 512, 513, 2100, 100_003])
@pytest.mark.parametrize("column", vectors.COLUMN_LENGTHS)
def test_payload_bytes_are_the_formula(
    quantizer: AbstractQuantizer, size: int, column: int
) -> None:
    table = vectors.evenly(size, column)
    columns = columns_for(quantizer, table)
    whole, rest = divmod(size, column)
    code_bytes = whole * -(-column * quantizer.bits // 8) + -(-rest * quantizer.bits // 8)
    levels = quantizer.levels_per_column * (whole + (rest > 0))
    assert quantizer.payload_bytes(columns) == 4 * levels + code_bytes
    # and every byte of it is written: two garbage buffers end up equal
    x = np.linspace(-1, 1, size, dtype=np.float32)
    payloads = [np.full(4 * levels + code_bytes, fill, np.uint8) for fill in (0x00, 0xFF)]
    for payload in payloads:
        zeros, owed = np.zeros_like(x), np.empty_like(x)
        quantizer.encode(x, columns, residual=zeros, next_residual=owed, payload=payload)
    vectors.assert_same_bits(*payloads)


@every_quantizer
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 99, 100, 511, 700])
@pytest.mark.parametrize("where", ["values", "residual"])
def test_what_is_not_finite_is_told(
    quantizer: AbstractQuantizer, value: float, at: int, where: str
) -> None:
    arrays = {name: np.linspace(-1, 1, 701, dtype=np.float32) for name in ("values", "residual")}
    arrays[where][at] = value
    columns = columns_for(quantizer, vectors.evenly(701, 100))
    assert not encode(quantizer, arrays["values"], arrays["residual"], columns)[2]


@every_quantizer
def test_an_overflow_is_told(quantizer: AbstractQuantizer) -> None:
    x = np.full(3, vectors.LARGEST, np.float32)
    assert not encode(quantizer, x, x.copy(), columns_for(quantizer, vectors.evenly(3, 3)))[2]


@every_quantizer
def test_what_lies_outside_the_columns_is_not_told(quantizer: AbstractQuantizer) -> None:
    x = np.array([np.nan, 1, -1, np.inf], np.float32)
    table = vectors.Table(np.array([1]), np.array([3]), 4)
    assert encode(quantizer, x, np.zeros_like(x), columns_for(quantizer, table))[2]


@every_quantizer
def test_zeros_decode_to_positive_zeros(quantizer: AbstractQuantizer) -> None:
    zeros = np.zeros(45, np.float32)
    columns = columns_for(quantizer, vectors.evenly(45, 32))
    payload, owed, _ = encode(quantizer, zeros, zeros.copy(), columns)
    vectors.assert_same_bits(decode(quantizer, payload, columns, 45), zeros)
    vectors.assert_same_bits(owed, zeros)


@every_quantizer
def test_full_columns_keep_their_place_whatever_the_longest_is(
    quantizer: AbstractQuantizer,
) -> None:
    starts, stops = np.array([0, 3]), np.array([3, 8])
    placed = quantizer.columns(starts, stops, column=512)
    wanted = columns_of(starts, stops, bits=quantizer.bits, column=512)
    assert placed.code_at.tolist() == wanted.code_at.tolist()
    assert placed.code_at[0] == 0  # neither is full: column order


@every_quantizer
@pytest.mark.parametrize("wrong", [-4, 4])
def test_a_payload_of_another_size_is_refused(quantizer: AbstractQuantizer, wrong: int) -> None:
    columns = columns_for(quantizer, vectors.evenly(40, 32))
    x, e, owed = (np.zeros(40, np.float32) for _ in range(3))
    payload = np.zeros(quantizer.payload_bytes(columns) + wrong, np.uint8)
    with pytest.raises(ValueError, match=r"payload: got \d+ bytes.*needs \d+ bytes for 2 columns"):
        quantizer.encode(x, columns, residual=e, next_residual=owed, payload=payload)
    with pytest.raises(ValueError, match="payload_bytes"):
        quantizer.decode(payload, columns, out=x)


@every_quantizer
def test_a_payload_off_its_boundary_is_refused(quantizer: AbstractQuantizer) -> None:
    columns = columns_for(quantizer, vectors.evenly(40, 32))
    payload = np.zeros(quantizer.payload_bytes(columns) + 1, np.uint8)[1:]
    with pytest.raises(ValueError, match="1 past a multiple of 4"):
        quantizer.decode(payload, columns, out=np.zeros(40, np.float32))


@every_quantizer
@pytest.mark.parametrize(
    "bad", [np.zeros(40), np.zeros(80, np.float32)[::2], np.zeros((2, 20), np.float32)]
)
def test_arrays_a_kernel_would_misread_are_refused(
    quantizer: AbstractQuantizer, bad: np.ndarray
) -> None:
    columns = columns_for(quantizer, vectors.evenly(40, 32))
    payload = np.zeros(quantizer.payload_bytes(columns), np.uint8)
    good = np.zeros(40, np.float32)
    with pytest.raises(TypeError, match="contiguous float32 of one dimension"):
        quantizer.decode(payload, columns, out=bad)
    with pytest.raises(TypeError, match="contiguous float32 of one dimension"):
        quantizer.encode(bad, columns, residual=good, next_residual=good.copy(), payload=payload)
    with pytest.raises(ValueError, match="values: got 39; the columns reach to 40"):
        quantizer.decode(payload, columns, out=good[:39])
