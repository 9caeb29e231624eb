"""One bit a value: two fp32 levels a column, the means of the values on either side of zero."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from mpisgd.buckets import Columns
from mpisgd.kernels import float32 as float32_kernels
from mpisgd.kernels import onebit as kernels
from mpisgd.kernels.threads import over_columns

from .base import AbstractQuantizer

F4 = NDArray[np.float32]
U1 = NDArray[np.uint8]


@final
class OneBit(AbstractQuantizer):
    """1-bit SGD with error feedback (Seide et al., Interspeech 2014; docs/arithmetic.md).

    Cost on the wire: 8 bytes a column and ceil(m / 8) bytes for its m values; 1/28 of fp32 for
    columns of 512. The sum of every column is kept up to rounding, and a column of one value or
    of one magnitude is sent without loss.
    """

    bits: ClassVar[int] = 1
    levels_per_column: ClassVar[int] = 2

    def encode(
        self,
        values: F4,
        columns: Columns,
        *,
        residual: F4 | None,
        next_residual: F4 | None,
        payload: U1,
    ) -> bool:
        """See the base class. What is not finite reaches a level, so only levels are checked."""
        if residual is None or next_residual is None:
            raise ValueError(
                "residual: got None; one bit without error feedback does not converge; "
                "pass two float32 buffers of the size of the values, zeros at first"
            )
        self._check(payload, columns, values, residual, next_residual)
        levels, codes = self._split(payload, columns)

        def work(part: slice) -> None:
            kernels.encode(
                values,
                residual,
                next_residual,
                columns.starts[part],
                columns.stops[part],
                columns.code_at[part],
                levels[part],
                codes,
            )

        over_columns(work, columns=len(columns.starts), values=values.size)
        return bool(float32_kernels.all_finite(levels.reshape(-1)))

    def decode(self, payload: U1, columns: Columns, *, out: F4, add: bool = False) -> None:
        """See the base class."""
        self._check(payload, columns, out)
        levels, codes = self._split(payload, columns)
        decode = kernels.decode_add if add else kernels.decode

        def work(part: slice) -> None:
            starts, stops, code_at, _ = columns
            decode(levels[part], codes, starts[part], stops[part], code_at[part], out)

        over_columns(work, columns=len(columns.starts), values=out.size)
