"""What one rank has handed to MPI so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Wire:
    """Totals of this rank."""

    bytes: int = 0  # payload and headers of gradient messages
    messages: int = 0
    control_bytes: int = 0  # counts, flags
    seconds: float = 0.0  # inside exchanges, encoding and decoding included

    def copy(self) -> Wire:
        """The totals at this moment."""
        return Wire(self.bytes, self.messages, self.control_bytes, self.seconds)
