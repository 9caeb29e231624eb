"""One bit, value by value, straight from docs/arithmetic.md: uses no kernel and no reference."""

from __future__ import annotations

import numpy as np

F = np.float32


def canonical_sum(values: list[np.float32]) -> np.float32:
    partial = [F(0)] * 32
    for i, value in enumerate(values):
        partial[i % 32] = partial[i % 32] + value
    for half in (16, 8, 4, 2, 1):
        for k in range(half):
            partial[k] = partial[k] + partial[k + half]
    return partial[0]


def encode_column(x: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Levels (level0, level1), code bytes and next residual of one column."""
    with np.errstate(all="ignore"):
        owed = [F(a) + F(b) for a, b in zip(x, e, strict=True)]
        bits = [1 if v >= 0 else 0 for v in owed]
        ones = sum(bits)
        sum1 = canonical_sum([v if b == 1 else F(0) for v, b in zip(owed, bits, strict=True)])
        sum0 = canonical_sum([v if b == 0 else F(0) for v, b in zip(owed, bits, strict=True)])
        levels = (sum0 / F(max(1, len(bits) - ones)), sum1 / F(max(1, ones)))
        kept = [v - levels[b] for v, b in zip(owed, bits, strict=True)]
    codes = [0] * ((len(bits) + 7) // 8)
    for i, b in enumerate(bits):
        codes[i // 8] += b * 2 ** (i % 8)
    return np.array(levels, F), np.array(codes, np.uint8), np.array(kept, F)


def decode_column(levels: np.ndarray, codes: np.ndarray, length: int) -> np.ndarray:
    return np.array([levels[codes[i // 8] // 2 ** (i % 8) % 2] for i in range(length)], F)
