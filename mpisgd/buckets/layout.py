"""Where every tensor lies in a flat bucket, and how the bucket is cut into columns.

    flat:   | raw tensors (fp32 on the wire) | coded tensors: column, column, ... |
            0                            raw_numel                             numel

No column spans two tensors (docs/arithmetic.md, "Parameters and buckets").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisgd import ranges

Int64s = NDArray[np.int64]


class Columns(NamedTuple):
    """A run of columns, in the coordinates of the values that are passed along with it."""

    starts: Int64s  # (c,) first value of each column
    stops: Int64s  # (c,) one past its last value
    code_at: Int64s  # (c,) first byte of its codes in the code area
    code_bytes: int  # length of the code area


def columns_of(starts: Int64s, stops: Int64s, *, bits: int, column: int | None = None) -> Columns:
    """Place the codes of a run of columns.

    Args:
        starts: (c,) first value of each column.
        stops: (c,) one past its last value.
        bits: width of a code; m values take ceil(m * bits / 8) bytes.
        column: length of a full column; None: of the longest one here.

    Codes of full columns come first, in column order, then those of the shorter ones, so that
    full columns stay aligned whatever lies between them.
    """
    lengths = stops - starts
    code_bytes = (lengths * bits + 7) // 8
    full = lengths == (column if column is not None else lengths.max(initial=0))
    order = np.argsort(~full, kind="stable")
    code_at = np.empty_like(starts)
    code_at[order] = np.cumsum(code_bytes[order]) - code_bytes[order]
    return Columns(starts, stops, code_at, int(code_bytes.sum()))


@dataclass(frozen=True)
class Piece:
    """One tensor inside a flat bucket."""

    name: str
    shape: tuple[int, ...]
    start: int  # first value in the flat buffer
    coded: bool  # False: travels as fp32

    @property
    def numel(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """One past the last value."""
        return self.start + self.numel


class Layout:
    """The tensors of one bucket in wire order: raw ones first, then the coded ones."""

    def __init__(
        self,
        tensors: Sequence[tuple[str, tuple[int, ...]]],
        *,
        column: int = 512,
        min_numel: int = 4096,
        min_dims: int = 2,
        all_raw: bool = False,
    ) -> None:
        """Lay out `tensors`, (name, shape) in wire order.

        Args:
            tensors: names and shapes; a tensor of no values takes no room.
            column: values per column.
            min_numel: smaller tensors stay raw.
            min_dims: tensors of fewer dimensions stay raw.
            all_raw: nothing is coded (32 bits).

        Raises:
            ValueError: `column` or `min_numel` out of range.
        """
        ranges.require("column", column, ranges.whole(1, 1 << 24))
        ranges.require("min_numel", min_numel, ranges.whole(0))

        def is_coded(shape: tuple[int, ...]) -> bool:
            return not all_raw and len(shape) >= min_dims and math.prod(shape) >= min_numel

        self.column = int(column)
        self.pieces: list[Piece] = []
        at = 0
        for coded in (False, True):
            for name, shape in tensors:
                if is_coded(shape) == coded:
                    self.pieces.append(Piece(name, tuple(shape), at, coded))
                    at += math.prod(shape)
        self.numel = at
        self.raw_numel = sum(piece.numel for piece in self.pieces if not piece.coded)
        self.starts, self.stops = self._cut()

    @property
    def coded_numel(self) -> int:
        """Values that travel as codes."""
        return self.numel - self.raw_numel

    def _cut(self) -> tuple[Int64s, Int64s]:
        """Bounds of all columns, counted from the first coded value."""
        starts: list[Int64s] = [np.empty(0, np.int64)]
        stops: list[Int64s] = [np.empty(0, np.int64)]
        for piece in self.pieces:
            if piece.coded and piece.numel:
                first, last = piece.start - self.raw_numel, piece.stop - self.raw_numel
                begin = np.arange(first, last, self.column, dtype=np.int64)
                starts.append(begin)
                stops.append(np.minimum(begin + self.column, last))
        return np.concatenate(starts), np.concatenate(stops)

    def raw_bounds(self, rank: int, size: int) -> tuple[int, int]:
        """Raw values that `rank` of `size` owns, as bounds in the flat buffer."""
        return self.raw_numel * rank // size, self.raw_numel * (rank + 1) // size

    def column_bounds(self, rank: int, size: int) -> tuple[int, int]:
        """Columns that `rank` of `size` owns."""
        count = len(self.starts)
        return count * rank // size, count * (rank + 1) // size


def cut_buckets(
    tensors: Sequence[tuple[str, tuple[int, ...]]], *, bucket_mb: float | None
) -> list[list[tuple[str, tuple[int, ...]]]]:
    """Group tensors, in order, into buckets of at most `bucket_mb` MB (2^20 bytes) of fp32.

    A tensor larger than that has a bucket of its own. None: one bucket for all.
    """
    if bucket_mb is not None:
        ranges.require("bucket_mb", bucket_mb, ranges.real(above=0.0))
    limit = math.inf if bucket_mb is None else bucket_mb * 2**20
    groups: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    filled = 0
    for name, shape in tensors:
        nbytes = 4 * math.prod(shape)
        if groups[-1] and filled + nbytes > limit:
            groups.append([])
            filled = 0
        groups[-1].append((name, shape))
        filled += nbytes
    return groups
