"""Owner-based reduce-scatter and all-gather: CNTK's exchange, one message per peer and phase.

Source: CNTK Source/1BitSGD (AllReduceDistGradAggregator.h, QuantizedDistributedCommunicator.h),
without its faults: whole bucket instead of tensor by tensor, rank order instead of arrival order.
The definition is docs/arithmetic.md, "Stripes".
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpisgd import waiting
from mpisgd.buckets import Columns, Layout
from mpisgd.kernels.float32 import all_finite

from .base import AbstractCollective, Call, Feedback, Floats
from .header import HEADER_BYTES, Flags, Header, Operation

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpisgd.quant.base import AbstractQuantizer

Bytes = NDArray[np.uint8]


class Stripe:
    """What one rank owns of a bucket, and how a message about it is laid out."""

    def __init__(
        self, layout: Layout, quantizer: AbstractQuantizer, *, rank: int, size: int
    ) -> None:
        """The stripe of `rank` of `size`."""
        self.raw = slice(*layout.raw_bounds(rank, size))
        first, last = layout.column_bounds(rank, size)
        starts, stops = layout.starts[first:last], layout.stops[first:last]
        lo = int(starts[0]) if len(starts) else 0
        hi = int(stops[-1]) if len(stops) else 0
        self.coded = slice(lo, hi)  # counted from the first coded value of the bucket
        self.columns: Columns = quantizer.columns(starts - lo, stops - lo, column=layout.column)
        self.raw_bytes = 4 * (self.raw.stop - self.raw.start)
        self.payload_bytes = quantizer.payload_bytes(self.columns)
        self.message_bytes = HEADER_BYTES + self.raw_bytes + self.payload_bytes

    def raw_of(self, message: Bytes) -> Floats:
        """The raw values inside a message, as a view."""
        return message[HEADER_BYTES : HEADER_BYTES + self.raw_bytes].view(np.float32)

    def payload_of(self, message: Bytes) -> Bytes:
        """The levels and codes inside a message, as a view."""
        return message[HEADER_BYTES + self.raw_bytes : self.message_bytes]


class Stripes(AbstractCollective):
    """Every rank owns a stripe of the bucket.

    1. Encode each stripe with the worker residual and send it to its owner.
    2. The owner sums in rank order, encodes the sum with its owner residual, sends it to all.
    3. Everybody, the owner too, decodes the same bytes.

    Cost: 2 (n-1) messages and, on average over ranks, 2 (n-1)/n * Q + 64 (n-1) bytes sent, Q the
    raw bytes and the payload of all columns; each value is quantized twice.
    """

    legal_bits: ClassVar[frozenset[int] | None] = None

    def __init__(self, layout: Layout, **parts: Any) -> None:
        """See `AbstractCollective`; allocates every message once."""
        super().__init__(layout, **parts)
        stripes = range(self.size)
        self.stripes = [Stripe(layout, self.quantizer, rank=r, size=self.size) for r in stripes]
        self.own = self.stripes[self.rank]
        self.peers = [(self.rank + k) % self.size for k in range(1, self.size)]
        # outgoing[r]: to the owner of stripe r; incoming[r]: rank r's part of the own stripe;
        # results[r]: the summed stripe r. The own message goes straight from outgoing to incoming.
        self.outgoing = [np.zeros(s.message_bytes, np.uint8) for s in self.stripes]
        self.incoming = [np.zeros(self.own.message_bytes, np.uint8) for _ in stripes]
        self.incoming[self.rank] = self.outgoing[self.rank]
        self.results = [np.zeros(s.message_bytes, np.uint8) for s in self.stripes]
        self.last_end = time.perf_counter()

    def new_feedback(self) -> Feedback:
        """A worker residual for all coded values, an owner residual for the own stripe."""
        own = self.own.coded
        return Feedback(self.layout.coded_numel, own.stop - own.start)

    def run(self, values: Floats, feedback: Feedback, call: Call) -> int:
        """See `AbstractCollective.run`."""
        started = time.perf_counter()
        before = self.clock.snapshot()
        self._started, self._call = started, call
        self._sends: list[MPI.Request] = []
        self._results = self._receive(self.results, Operation.SPREAD)
        self._parts = self._receive(self.incoming, Operation.REDUCE)
        try:
            self._reduce(values, feedback)
            self._sum(values)
            self._spread(values, feedback)
            flags = self._take(values)
            self._wait(self._sends, "sends")
        except BaseException:
            waiting.abandon([*self._sends, *self._parts.values(), *self._results.values()])
            raise
        self.sequence = (self.sequence + 1) & 0xFFFFFFFF
        self.last_end = time.perf_counter()
        spent = self.last_end - started
        self.clock.add("transfer", max(0.0, spent - sum(self.clock.since(before).values())))
        self.wire.seconds += spent
        return flags

    def _header(self, operation: Operation, flags: int) -> Header:
        stamp = self._started - self.last_end
        call = self._call
        return Header(self.sequence, operation, flags, call.step, stamp, call.samples)

    def _receive(self, messages: list[Bytes], operation: Operation) -> dict[int, MPI.Request]:
        """Post the receives of one phase, so that no message is unexpected."""
        return {r: self.comm.Irecv(messages[r], source=r, tag=operation) for r in self.peers}

    def _send(self, message: Bytes, rank: int, operation: Operation) -> None:
        self.wire.bytes += message.nbytes
        self.wire.messages += 1
        self._sends.append(self.comm.Isend(message, dest=rank, tag=operation))

    def _reduce(self, values: Floats, feedback: Feedback) -> None:
        """Phase 1: encode each stripe and send it; the own one last, while the others travel."""
        raw, coded = values[: self.layout.raw_numel], values[self.layout.raw_numel :]
        for rank in [*self.peers, self.rank]:
            stripe, message = self.stripes[rank], self.outgoing[rank]
            with self.clock.phase("encode"):
                stripe.raw_of(message)[:] = raw[stripe.raw]
                clean = all_finite(raw[stripe.raw]) and self.quantizer.encode(
                    coded[stripe.coded],
                    stripe.columns,
                    residual=feedback.worker[stripe.coded],
                    next_residual=feedback.next_worker[stripe.coded],
                    payload=stripe.payload_of(message),
                )
                flags = self._call.flags | (0 if clean else Flags.NONFINITE)
                self._header(Operation.REDUCE, flags).write(message)
            if rank != self.rank:
                self._send(message, rank, Operation.REDUCE)

    def _sum(self, values: Floats) -> None:
        """Decode what arrived for the own stripe into `values`, in rank order."""
        raw, coded = self._own_parts(values)
        self._flags, late = 0, 0.0
        waited = 0.0
        for rank, message in enumerate(self.incoming):
            if rank != self.rank:
                waited += self._wait([self._parts[rank]], f"rank {rank}'s part")
            header = Header.read(message)
            header.check(self._header(Operation.REDUCE, 0), rank=self.rank, peer=rank)
            self._flags |= header.flags
            late = max(late, header.stamp_s)
            with self.clock.phase("decode"):
                part = self.own.raw_of(message)
                if rank == 0:
                    raw[:] = part
                else:
                    # Infinities of two ranks may meet here: the flags tell, not a warning.
                    with np.errstate(over="ignore", invalid="ignore"):
                        np.add(raw, part, out=raw)
                payload = self.own.payload_of(message)
                self.quantizer.decode(payload, self.own.columns, out=coded, add=rank > 0)
        # Waiting for a rank that came late is its delay, not the network's.
        lag = late - (self._started - self.last_end)
        self.clock.add("wait", min(waited, max(0.0, lag)))

    def _spread(self, values: Floats, feedback: Feedback) -> None:
        """Phase 2: encode the sum of the own stripe and send it to everybody."""
        raw, coded = self._own_parts(values)
        message = self.results[self.rank]
        with self.clock.phase("encode"):
            self.own.raw_of(message)[:] = raw
            clean = all_finite(raw) and self.quantizer.encode(
                coded,
                self.own.columns,
                residual=feedback.owner,
                next_residual=feedback.next_owner,
                payload=self.own.payload_of(message),
            )
            self._flags |= 0 if clean else Flags.NONFINITE
            self._header(Operation.SPREAD, self._flags).write(message)
        for rank in self.peers:
            self._send(message, rank, Operation.SPREAD)

    def _take(self, values: Floats) -> int:
        """Decode all summed stripes; returns the OR of the owners' flags."""
        flags = self._flags
        raw, coded = values[: self.layout.raw_numel], values[self.layout.raw_numel :]
        for rank in [self.rank, *self.peers]:
            stripe, message = self.stripes[rank], self.results[rank]
            if rank != self.rank:
                self._wait([self._results[rank]], f"the stripe of rank {rank}")
                header = Header.read(message)
                header.check(self._header(Operation.SPREAD, 0), rank=self.rank, peer=rank)
                flags |= header.flags
            with self.clock.phase("decode"):
                raw[stripe.raw] = stripe.raw_of(message)
                self.quantizer.decode(
                    stripe.payload_of(message), stripe.columns, out=coded[stripe.coded]
                )
        return flags

    def _own_parts(self, values: Floats) -> tuple[Floats, Floats]:
        """Raw and coded values of the own stripe, as views."""
        coded = values[self.layout.raw_numel :]
        return values[self.own.raw], coded[self.own.coded]

    def _wait(self, requests: list[MPI.Request], what: str) -> float:
        return waiting.wait_all(requests, what=f"{what} in step {self._call.step}")
