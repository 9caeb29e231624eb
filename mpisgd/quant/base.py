"""What every quantizer promises: columns of fp32 values to a payload and back, with error feedback.

A payload is levels, then codes:

    | levels_per_column little-endian fp32 a column, in column order | codes, columns.code_bytes |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mpisgd.buckets import Columns, columns_of

F4 = NDArray[np.float32]
I8 = NDArray[np.int64]
U1 = NDArray[np.uint8]


class AbstractQuantizer(ABC):
    """Stateless: one object serves every bucket; residuals and buffers are the caller's.

    Laws, for every column, with v = values + residual, up to fp32 rounding:

    1. decoded + next residual = v (conservation);
    2. |next residual|^2 <= |v|^2, strictly where v is not 0 (the debt shrinks);
    3. no column sees another.

    Methods take numpy arrays. `values`, `residual`, `next_residual` and `out` are (n,) f4 and
    contiguous; only what lies in a column is read or written.
    """

    bits: ClassVar[int]  # width of a code
    levels_per_column: ClassVar[int]  # fp32 numbers sent with every column

    def columns(self, starts: I8, stops: I8, *, column: int | None = None) -> Columns:
        """Place the codes of columns `starts[k]:stops[k]`, (c,) i8; see `columns_of`."""
        return columns_of(starts, stops, bits=self.bits, column=column)

    def payload_bytes(self, columns: Columns) -> int:
        """Exact size of the payload of `columns`: levels and codes."""
        return 4 * self.levels_per_column * len(columns.starts) + columns.code_bytes

    @abstractmethod
    def encode(
        self,
        values: F4,
        columns: Columns,
        *,
        residual: F4 | None,
        next_residual: F4 | None,
        payload: U1,
    ) -> bool:
        """Write the payload of `values + residual` and what it leaves owed.

        Args:
            values: (n,) f4, the new debt.
            columns: where the columns lie in `values`.
            residual: (n,) f4, the old debt; read only: it stays committed until the step is known
                to be clean.
            next_residual: (n,) f4, another buffer than `residual`; gets the debt that remains.
            payload: (payload_bytes(columns),) u1 on a 4-byte boundary; written completely.

        Returns:
            Whether everything encoded is finite. A NaN, an infinity or an overflow gives False.

        Raises:
            ValueError: `payload` has another size or is not aligned; an array is too short; a
                residual is missing.
            TypeError: an array is not contiguous float32 of one dimension.
        """

    @abstractmethod
    def decode(self, payload: U1, columns: Columns, *, out: F4, add: bool = False) -> None:
        """Write the decoded values to `out`, (n,) f4, or add them to it.

        Raises:
            ValueError: `payload` has another size or is not aligned; `out` is too short.
            TypeError: `out` is not contiguous float32 of one dimension.
        """

    def warm_up(self) -> None:
        """Compile what encode and decode need, on a column of one value."""
        columns = self.columns(np.zeros(1, np.int64), np.ones(1, np.int64))
        value, residual, owed = (np.zeros(1, np.float32) for _ in range(3))
        payload = np.zeros(self.payload_bytes(columns), np.uint8)
        self.encode(value, columns, residual=residual, next_residual=owed, payload=payload)
        for add in (False, True):
            self.decode(payload, columns, out=value, add=add)

    def _check(self, payload: U1, columns: Columns, *values: F4 | None) -> None:
        """Refuse what a kernel would misread: it trusts sizes, and takes float64 without a word."""
        wanted, past = self.payload_bytes(columns), payload.ctypes.data % 4
        if payload.nbytes != wanted or past:
            raise ValueError(
                f"payload: got {payload.nbytes} bytes, {past} past a multiple of 4; "
                f"{type(self).__name__} needs {wanted} bytes for {len(columns.starts)} columns, "
                "on a multiple of 4; size it with payload_bytes()"
            )
        extent = int(columns.stops.max(initial=0))
        for array in values:
            if array is None:
                continue
            if array.dtype != np.float32 or array.ndim != 1 or not array.flags.c_contiguous:
                raise TypeError(
                    f"values: got {array.dtype} of shape {array.shape}; need contiguous float32 of "
                    "one dimension; widen or copy them into such a buffer"
                )
            if array.size < extent:
                raise ValueError(
                    f"values: got {array.size}; the columns reach to {extent}; "
                    "pass the buffer that the columns were cut from"
                )

    def _split(self, payload: U1, columns: Columns) -> tuple[F4, U1]:
        """Views of the levels, (c, levels_per_column) f4, and of the codes of a payload."""
        codes_at = payload.nbytes - columns.code_bytes
        levels = payload[:codes_at].view(np.float32)
        return levels.reshape(len(columns.starts), self.levels_per_column), payload[codes_at:]
