"""Small collectives beside the gradients: gathering, summing and broadcasting what ranks agree on.

Every one of them waits politely and is named when it stalls. Bytes are booked by formula.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from mpisgd.waiting import wait_all

if TYPE_CHECKING:
    from mpi4py import MPI

# One broadcast message: far below MPI's 2**31 - 1 elements, and a bounded copy of the model.
_BROADCAST_BYTES = 64 * 2**20


class Control:
    """Collectives on `comm`, which belongs to them; `bytes` counts what this rank has sent."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        """`comm`: a communicator that nobody else uses."""
        self.comm = comm
        self.bytes = 0

    def gather_numbers(self, own: np.ndarray, what: str) -> np.ndarray:
        """Every rank's 1-D array (equal lengths and types), as rows.

        Cost: (n-1) · its bytes.
        """
        gathered = np.empty((self.comm.size, own.size), own.dtype)
        wait_all([self.comm.Iallgather(own, gathered)], what=what)
        self.bytes += (self.comm.size - 1) * own.nbytes
        return gathered

    def gather_texts(self, own: str, what: str) -> list[str]:
        """Every rank's text. Cost: (n-1) · (its bytes + 8)."""
        data = np.frombuffer(own.encode("utf-8", "backslashreplace"), np.uint8)
        counts = self.gather_numbers(np.array([data.size], np.int64), what)[:, 0]
        gathered = np.empty(int(counts.sum()), np.uint8)
        wait_all([self.comm.Iallgatherv(data, [gathered, counts.tolist()])], what=what)
        self.bytes += (self.comm.size - 1) * data.nbytes
        ends = np.cumsum(counts)
        return [
            gathered[end - count : end].tobytes().decode()
            for count, end in zip(counts, ends, strict=True)
        ]

    def sum(self, array: np.ndarray, what: str) -> np.ndarray:
        """The sum of the ranks' arrays, the same bits on all. Cost: 2(n-1)/n · its bytes."""
        own = np.ascontiguousarray(array).reshape(-1)  # mpi4py takes no 0-d arrays
        total = np.empty_like(own)
        wait_all([self.comm.Iallreduce(own, total)], what=what)
        self.bytes += 2 * (self.comm.size - 1) * own.nbytes // self.comm.size
        return total.reshape(array.shape)

    def barrier(self, what: str) -> None:
        """Wait for all ranks."""
        wait_all([self.comm.Ibarrier()], what=what)

    def broadcast(self, tensors: Sequence[torch.Tensor], what: str) -> None:
        """Give all ranks rank 0's values, in place. Cost: n-1 times their bytes, by rank 0."""
        for group in _groups(tensors):
            packed = torch.cat([_bytes_of(tensor) for tensor in group])
            for piece in torch.split(packed, _BROADCAST_BYTES):
                wait_all([self.comm.Ibcast(piece.numpy(), root=0)], what=what)
            if self.comm.rank == 0:
                self.bytes += (self.comm.size - 1) * packed.numel()
            else:
                _unpack(packed, group)


def describe(tensor: torch.Tensor) -> str:
    """Data type and shape, as ranks compare them."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def refusal(tensor: torch.Tensor) -> str | None:
    """Why this tensor cannot be broadcast; None if it can."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "meta" if tensor.is_meta else "quantized" if tensor.is_quantized else tensor.layout
        return f"{kind} tensors have no plain values to send; make it dense, or keep it out"
    return None


def _groups(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Runs of tensors of about one message each; empty tensors are left out."""
    group: list[torch.Tensor] = []
    filled = 0
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        nbytes = tensor.numel() * tensor.element_size()
        if group and filled + nbytes > _BROADCAST_BYTES:
            yield group
            group, filled = [], 0
        group.append(tensor)
        filled += nbytes
    if group:
        yield group


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's values in logical order as CPU bytes, whatever its type and memory format."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def _unpack(packed: torch.Tensor, group: Sequence[torch.Tensor]) -> None:
    """Write the values in `packed` (as `_bytes_of` packs them) into the tensors."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in group]
    with torch.no_grad():
        for tensor, part in zip(group, torch.split(packed, sizes), strict=True):
            # A copy of its own: a view at an odd address cannot become a wider type.
            values = part.clone().view(tensor.dtype).view(tensor.shape)
            for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
                if stride == 0 and size > 1:  # expanded: one value in memory, written once
                    tensor, values = tensor.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
            tensor.copy_(values)
