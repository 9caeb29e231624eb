"""The 1-bit code of one column, as docs/arithmetic.md spells it ("One bit")."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

PARTIALS = 32


class Coded(NamedTuple):
    """One coded column of m values."""

    level0: np.float32
    level1: np.float32
    bits: np.ndarray  # (m,) bool

    @property
    def finite(self) -> bool:
        """Whether both levels are: every non-finite value of the column reaches one of them."""
        return bool(np.isfinite(self.level0) and np.isfinite(self.level1))


def canonical_sum(values: np.ndarray) -> np.float32:
    """Sum (m,) float32 in the one order all backends share."""
    partial = np.zeros(PARTIALS, np.float32)
    for start in range(0, len(values), PARTIALS):
        chunk = values[start : start + PARTIALS]
        partial[: len(chunk)] = partial[: len(chunk)] + chunk
    width = PARTIALS
    while width > 1:
        width //= 2
        partial[:width] = partial[:width] + partial[width : 2 * width]
    return partial[0]


def mean_of(values: np.ndarray, chosen: np.ndarray) -> np.float32:
    """Mean of the chosen values of a column; 0 if none is."""
    total = canonical_sum(np.where(chosen, values, np.float32(0)))
    return total / np.float32(max(1, int(chosen.sum())))


def encode(values: np.ndarray, residual: np.ndarray) -> tuple[Coded, np.ndarray]:
    """Code a column (m,) float32 plus what it owes; return the code and what it owes next."""
    owed = values + residual
    bits = owed >= 0  # -0.0 is 1, NaN is 0
    coded = Coded(level0=mean_of(owed, ~bits), level1=mean_of(owed, bits), bits=bits)
    return coded, owed - decode(coded)


def decode(coded: Coded) -> np.ndarray:
    """(m,) float32."""
    return np.where(coded.bits, coded.level1, coded.level0).astype(np.float32)


def payload_bytes(lengths: list[int]) -> int:
    """Bytes of columns of these lengths: two fp32 levels, then a bit a value in whole bytes."""
    return sum(8 + -(-m // 8) for m in lengths)


def pack(columns: list[Coded], *, full: int) -> bytes:
    """Payload of a run of columns: levels, codes of columns of `full` values, other codes."""
    levels = b"".join(np.array([c.level0, c.level1], "<f4").tobytes() for c in columns)
    whole = [c for c in columns if len(c.bits) == full]
    short = [c for c in columns if len(c.bits) != full]
    return levels + b"".join(packed_bits(c.bits) for c in whole + short)


def packed_bits(bits: np.ndarray) -> bytes:
    """Value i is bit i mod 8 of byte i // 8; the rest of the last byte is 0."""
    codes = bytearray(-(-len(bits) // 8))
    for i, bit in enumerate(bits):
        codes[i // 8] |= int(bit) << (i % 8)
    return bytes(codes)
