"""Scratch on the stack of a kernel: a numba array is on the heap, and kernels do not allocate."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Numba carries types in part, and not in every release.
_cgutils: Any = cgutils
_types: Any = types


def _floats(typing_context: Any, length: Any) -> Any:
    """Room for `length` float32, a literal; not initialised; indexed like an array."""
    del typing_context
    count = length.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature, args
        room = _cgutils.alloca_once(builder, ir.ArrayType(ir.FloatType(), count))
        return builder.bitcast(room, ir.FloatType().as_pointer())

    return _types.CPointer(_types.float32)(length), generate


floats: Any = intrinsic(prefer_literal=True)(_floats)
