"""Float32 columns to try codes on, buffers that notice a write outside, and equality of bits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

# Lengths around the edges of a byte, of 32 partial sums, and the default column.
COLUMN_LENGTHS = (1, 3, 31, 32, 33, 100, 512)
LARGEST = np.finfo(np.float32).max
SMALLEST = np.float32(1e-45)  # the smallest denormal number
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, SMALLEST, -SMALLEST, 1e-38, LARGEST, -LARGEST, np.inf, -np.inf, np.nan],
    np.float32,
)
KINDS = ("normal", "heavy", "ties", "tiny", "zeros", "one side")


class Table(NamedTuple):
    """Columns in a buffer of `size` values, with gaps between them."""

    starts: np.ndarray
    stops: np.ndarray
    size: int


@st.composite
def tables(draw: Any, *, max_size: int = 2100) -> Table:
    """Some columns of the lengths above, gaps of up to 5 values around them."""
    lengths, total = [], 0
    for length in draw(st.lists(st.sampled_from(COLUMN_LENGTHS), max_size=12)):
        if total + length <= max_size:
            lengths.append(length)
            total += length
    gaps = draw(st.lists(st.integers(0, 5), min_size=len(lengths), max_size=len(lengths)))
    starts = np.cumsum([0, *lengths[:-1]]) + np.cumsum(gaps) if lengths else np.empty(0)
    starts = starts.astype(np.int64)
    return Table(starts, starts + np.array(lengths, np.int64), total + sum(gaps) + 2)


def evenly(size: int, column: int) -> Table:
    """`size` values in columns of `column`, the last one shorter."""
    starts = np.arange(0, size, column, dtype=np.int64)
    return Table(starts, np.minimum(starts + column, size), size)


def numbers(rng: np.random.Generator, size: int, kind: str) -> np.ndarray:
    """`size` finite float32 of one kind."""
    normal = rng.standard_normal(size)
    with np.errstate(under="ignore"):
        return {
            "normal": normal,
            "heavy": normal**7,
            "ties": np.sign(normal) * 0.25,
            "tiny": normal * 1e-44,
            "zeros": np.zeros(size),
            "one side": -np.abs(normal),
        }[kind].astype(np.float32)


@st.composite
def pairs(draw: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and residual, `size` finite float32 each."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = numbers(rng, size, draw(st.sampled_from(KINDS)))
    return values, numbers(rng, size, draw(st.sampled_from(KINDS)))


def any_floats(size: int) -> st.SearchStrategy[np.ndarray]:
    """`size` float32 of any kind, NaN and infinities among them."""
    element = st.one_of(st.floats(width=32), st.sampled_from([float(x) for x in SPECIAL]))
    return hnp.arrays(np.float32, size, elements=element)


class Guarded:
    """A buffer with canaries before and behind it, and full of garbage in between."""

    def __init__(self, shape: int | tuple[int, ...], dtype: Any) -> None:
        self.shape = (shape,) if isinstance(shape, int) else shape
        inside = int(np.prod(self.shape)) * np.dtype(dtype).itemsize
        # 64 bytes on either side keep the alignment.
        self.bytes = np.full(inside + 128, 0xA5, np.uint8)
        self.array = self.bytes[64 : 64 + inside].view(dtype).reshape(self.shape)
        self.before = self.array.copy()

    def check(self) -> None:
        """Fail if anything outside was written."""
        assert (self.bytes[:64] == 0xA5).all(), "wrote before the buffer"
        assert (self.bytes[-64:] == 0xA5).all(), "wrote behind the buffer"


def outside(table: Table) -> np.ndarray:
    """Mask of the values that lie in no column."""
    mask = np.ones(table.size, bool)
    for start, stop in zip(table.starts, table.stops, strict=True):
        mask[start:stop] = False
    return mask


def assert_same_bits(got: np.ndarray, wanted: np.ndarray) -> None:
    """Equal to the last bit, the sign of zero too; a NaN equals any NaN (its payload is free)."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if got.dtype == np.float32:
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
        number = ~np.isnan(wanted)
        got, wanted = got[number].view(np.uint32), wanted[number].view(np.uint32)
    np.testing.assert_array_equal(got, wanted)
