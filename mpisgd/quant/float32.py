"""32 bits a value: nothing is lost, nothing is owed."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from mpisgd.buckets import Columns
from mpisgd.kernels import float32 as kernels

from .base import AbstractQuantizer

F4 = NDArray[np.float32]
U1 = NDArray[np.uint8]


@final
class Float32(AbstractQuantizer):
    """Sends values as they are. Cost on the wire: 4 bytes a value.

    With residuals the old debt is sent too and none remains; without, values are copied.
    """

    bits: ClassVar[int] = 32
    levels_per_column: ClassVar[int] = 0

    def encode(
        self,
        values: F4,
        columns: Columns,
        *,
        residual: F4 | None,
        next_residual: F4 | None,
        payload: U1,
    ) -> bool:
        """See the base class; here both residuals may be None."""
        if (residual is None) != (next_residual is None):
            raise ValueError(
                "residual: got one of residual and next_residual; pass both, or neither to send "
                "the values alone"
            )
        self._check(payload, columns, values, residual, next_residual)
        _, codes = self._split(payload, columns)
        sent = codes.view(np.float32)
        starts, stops, code_at, _ = columns
        if residual is None or next_residual is None:
            kernels.pack(values, starts, stops, code_at, sent)
        else:
            kernels.pack_owed(values, residual, next_residual, starts, stops, code_at, sent)
        return bool(kernels.all_finite(sent))

    def decode(self, payload: U1, columns: Columns, *, out: F4, add: bool = False) -> None:
        """See the base class."""
        self._check(payload, columns, out)
        _, codes = self._split(payload, columns)
        unpack = kernels.unpack_add if add else kernels.unpack
        unpack(codes.view(np.float32), columns.starts, columns.stops, columns.code_at, out)

    def warm_up(self) -> None:
        """Compile also the plain copy."""
        super().warm_up()
        columns = self.columns(np.zeros(1, np.int64), np.ones(1, np.int64))
        payload = np.zeros(4, np.uint8)
        value = np.zeros(1, np.float32)
        self.encode(value, columns, residual=None, next_residual=None, payload=payload)
