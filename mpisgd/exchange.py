"""The quantized sum of a flat vector over all ranks: layout, code and collective together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mpisgd.buckets import Layout
from mpisgd.collectives import COLLECTIVES
from mpisgd.collectives.base import Call, Feedback
from mpisgd.collectives.header import Flags
from mpisgd.collectives.wire import Wire
from mpisgd.quant import QUANTIZERS
from mpisgd.ranges import is_whole
from mpisgd.timing import Clock

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpisgd.world import World


def check_bits(bits: int) -> None:
    """Raise ValueError unless `bits` is a registered width."""
    if not is_whole(bits) or bits not in QUANTIZERS:
        raise ValueError(
            f"quant: got {bits!r}; must be one of {sorted(QUANTIZERS)} bits in this version"
        )


def choose_collective(name: str, bits: int) -> str:
    """The collective that carries `bits`: `name`, or for "auto" the best that is there.

    Raises:
        ValueError: unknown name, or a collective that cannot carry that width.
    """
    if name == "auto":
        return "plain" if bits == 32 else "stripes"
    if name not in COLLECTIVES:
        raise ValueError(f"collective: got {name!r}; must be auto or one of {sorted(COLLECTIVES)}")
    legal = COLLECTIVES[name].legal_bits
    if legal is not None and bits not in legal:
        raise ValueError(
            f"collective: {name} carries {sorted(legal)} bits, not {bits};"
            f' use collective="auto" or "stripes", or quant={max(legal)}'
        )
    return name


def payload_bytes(layout: Layout, bits: int) -> int:
    """Bytes of one whole bucket on the wire at `bits`, headers excluded."""
    quantizer = QUANTIZERS[bits]()
    columns = quantizer.columns(layout.starts, layout.stops, column=layout.column)
    return 4 * layout.raw_numel + int(quantizer.payload_bytes(columns))


class Exchange:
    """Sums flat float32 vectors over the ranks of a world, at any registered width.

    Example:
        exchange = Exchange(1_000_000, world=world, quant=1)
        exchange.exchange(flat)      # flat now holds the sum, the same bits on every rank
    """

    def __init__(
        self,
        numel_or_shapes: int | Sequence[Any] | Layout,
        *,
        world: World,
        quant: int = 1,
        collective: str = "auto",
        column: int = 512,
        error_feedback: bool = True,
        wire: Wire | None = None,
        clock: Clock | None = None,
        comm: MPI.Comm | None = None,
    ) -> None:
        """Allocate messages and zero residuals, and compile the kernels. Collective.

        Args:
            numel_or_shapes: number of values (one tensor), or the shapes of several tensors (no
                column spans two of them), or a ready `Layout`.
            world: whose ranks take part.
            quant: bits per value; every value is coded (32: none).
            collective: a name of COLLECTIVES, or "auto".
            column: values per column.
            error_feedback: remember what a code lost and send it later.
            wire: totals to add to; a new one if None.
            clock: seconds to add to; a new one if None.
            comm: a communicator that only this exchange uses; a new Dup if None.

        Raises:
            ValueError: unknown width or collective, an illegal pair, or sizes that differ by rank.
        """
        check_bits(quant)
        self.collective = choose_collective(collective, quant)
        self.layout = _as_layout(numel_or_shapes, column=column, all_raw=quant == 32)
        self.world = world
        self.bits = quant
        self.error_feedback = error_feedback
        self.wire = wire if wire is not None else Wire()
        self.clock = clock if clock is not None else Clock()
        self.calls = 0
        world.check_same("exchange", self._fingerprint())
        self._quantizer = QUANTIZERS[quant]()
        with world.main_first():  # rank 0 compiles, the others find its cache
            self._quantizer.warm_up()
        self._collective = COLLECTIVES[self.collective](
            self.layout,
            quantizer=self._quantizer,
            comm=comm if comm is not None else world.dup(),
            wire=self.wire,
            clock=self.clock,
        )
        self.feedback: Feedback = self._collective.new_feedback()

    def _fingerprint(self) -> list[tuple[str, str]]:
        """What must be the same on all ranks."""
        options = f"{self.bits} bits, {self.collective}, columns of {self.layout.column}"
        pieces = [(p.name, f"{p.shape}") for p in self.layout.pieces]
        return [("options", f"{options}, error_feedback={self.error_feedback}"), *pieces]

    @property
    def payload_bytes(self) -> int:
        """Bytes of one whole vector on the wire at this width, headers excluded."""
        return payload_bytes(self.layout, self.bits)

    @property
    def residual(self) -> Tensor:
        """(numel,) float32: what this rank still owes, a view of the committed worker residual."""
        if self.feedback.worker.size == self.layout.numel:
            return torch.from_numpy(self.feedback.worker)
        padded = np.zeros(self.layout.numel, np.float32)
        if self.feedback.worker.size:
            padded[self.layout.raw_numel :] = self.feedback.worker
        return torch.from_numpy(padded)

    @property
    def owner_residual(self) -> Tensor:
        """(values of the own stripe,) float32: what this rank owes as an owner."""
        return torch.from_numpy(self.feedback.owner)

    def exchange(self, flat: Tensor) -> bool:
        """Replace `flat` by the sum of what the ranks pass, as quantized. Collective.

        Args:
            flat: 1-D contiguous float32 tensor of the exchange's number of values, on any device.

        Returns:
            True, and then all ranks hold the same bits; or False on all ranks if any value on any
            rank was not finite: the residuals are then as before and `flat` is not to be used.

        Raises:
            TypeError, ValueError: wrong dtype, shape or memory layout.
        """
        self._check(flat)
        self.calls += 1
        if self.world.size == 1:
            return bool(torch.isfinite(flat).all())
        host = flat.detach().cpu()
        flags = self.run(host.numpy(), Call(step=self.calls))
        if host.data_ptr() != flat.data_ptr():
            flat.detach().copy_(host)
        if flags & Flags.NONFINITE:
            return False
        self.commit()
        return True

    def run(self, values: np.ndarray, call: Call) -> int:
        """Exchange without committing: the caller looks at the returned flags first."""
        return int(self._collective.run(values, self.feedback, call))

    def commit(self) -> None:
        """Keep the residuals that the last `run` left (none without error feedback)."""
        if self.error_feedback:
            self.feedback.commit()

    def _check(self, flat: Tensor) -> None:
        if not isinstance(flat, Tensor):
            raise TypeError(
                f"exchange: got a {type(flat).__name__}; wanted a torch tensor (torch.from_numpy"
                " shares an array's memory)"
            )
        if flat.dtype != torch.float32:
            raise TypeError(f"exchange: dtype is {flat.dtype}; wanted float32: pass flat.float()")
        if flat.dim() != 1 or flat.numel() != self.layout.numel or not flat.is_contiguous():
            raise ValueError(
                f"exchange: got shape {tuple(flat.shape)}, contiguous={flat.is_contiguous()};"
                f" wanted a contiguous 1-D tensor of {self.layout.numel} values, as at construction"
            )

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals (copies) and counters."""
        return {
            "bits": self.bits,
            "calls": self.calls,
            "worker": torch.from_numpy(self.feedback.worker.copy()),
            "owner": torch.from_numpy(self.feedback.owner.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave, on the same rank of the same number of ranks.

        Raises:
            ValueError: the state is of another width or of other sizes.
        """
        worker, owner = state["worker"].numpy(), state["owner"].numpy()
        sizes = (state["bits"], worker.size, owner.size)
        mine = (self.bits, self.feedback.worker.size, self.feedback.owner.size)
        if sizes != mine:
            raise ValueError(
                f"exchange state: (bits, worker, owner residual) is {sizes}; this exchange has"
                f" {mine}: load it with the same model, options, rank and number of ranks"
            )
        self.calls = state["calls"]
        self.feedback.worker[:] = worker
        self.feedback.owner[:] = owner


def _as_layout(what: int | Sequence[Any] | Layout, *, column: int, all_raw: bool) -> Layout:
    """A layout in which every value is coded, from a number of values or from shapes."""
    if isinstance(what, Layout):
        return what
    if isinstance(what, (bool, float, str)):
        raise TypeError(f"numel_or_shapes: got {what!r}; wanted a number of values, or shapes")
    if isinstance(what, (int, np.integer)):
        what = [(int(what),)]
    shapes = [(int(s),) if isinstance(s, (int, np.integer)) else tuple(map(int, s)) for s in what]
    if any(dim < 0 for shape in shapes for dim in shape):
        raise ValueError(f"numel_or_shapes: got {shapes}; sizes must be 0 or more")
    named = [(f"tensor {i}", shape) for i, shape in enumerate(shapes)]
    return Layout(named, column=column, min_numel=0, min_dims=0, all_raw=all_raw)
