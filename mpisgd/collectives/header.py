"""The 32 bytes in front of every message: which exchange it belongs to, and what its sender saw."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# sequence u4, operation u2, flags u2, step u8, arrival stamp f8, samples u8; little-endian.
_FORMAT = struct.Struct("<IHHQdQ")
HEADER_BYTES = _FORMAT.size


class Operation(IntEnum):
    """What a message is part of."""

    REDUCE = 1  # to the owner of a stripe
    SPREAD = 2  # from the owner to everybody


class Flags(IntFlag):
    """What a sender saw; the owners pass on the OR over all ranks."""

    NONE = 0
    NONFINITE = 1  # a NaN, an infinity or an overflow
    UNTOUCHED = 2  # some parameter had no gradient


class MismatchError(RuntimeError):
    """Two ranks are in different operations."""


class Header(NamedTuple):
    """One message header."""

    sequence: int  # exchanges so far on this communicator, modulo 2^32
    operation: int
    flags: int
    step: int
    stamp_s: float  # seconds between the sender's last exchange and this one
    samples: int  # global samples seen, this step's included

    def write(self, message: NDArray[np.uint8]) -> None:
        """Put the header into the first 32 bytes of `message`."""
        _FORMAT.pack_into(message.data, 0, *self)

    @classmethod
    def read(cls, message: NDArray[np.uint8]) -> Header:
        """The header of a received message."""
        return cls(*_FORMAT.unpack_from(message.data))

    def check(self, mine: Header, *, rank: int, peer: int) -> None:
        """Raise MismatchError unless `self`, received from `peer`, matches `mine`."""
        if (self.sequence, self.operation, self.step, self.samples) == (
            mine.sequence,
            mine.operation,
            mine.step,
            mine.samples,
        ):
            return
        raise MismatchError(
            f"exchange: rank {peer} is in {self._place()}, rank {rank} in {mine._place()};"
            " all ranks must call backward() and step() equally often (samples=0 without data) and"
            " agree on global_samples"
        )

    def _place(self) -> str:
        name = Operation(self.operation).name.lower() if self.operation in (1, 2) else "unknown"
        return f"{name} of step {self.step} (exchange {self.sequence}, {self.samples} samples seen)"
