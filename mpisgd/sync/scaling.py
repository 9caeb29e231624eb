"""torch's GradScaler under an agreed verdict: the scale changes alike on all ranks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

_SMALLEST = 2.0**-100


class Scaler:
    """Wraps a GradScaler, or nothing at all (scale 1)."""

    def __init__(self, scaler: Any | None) -> None:
        """`scaler`: a torch.amp.GradScaler that nobody else scales, steps or updates; or None."""
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None

    @property
    def factor(self) -> float:
        """By what gradients are multiplied at the moment."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to call backward() on."""
        if self._scaler is None:
            return loss
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def update(self, *, clean: bool) -> None:
        """Shrink the scale after a skipped step, grow it after enough clean ones.

        GradScaler takes its verdict from its own look at local gradients, which can differ between
        ranks; here the verdict is the agreed one, given through the public state_dict.
        """
        if self._scaler is None:
            return
        state = self._scaler.state_dict()
        if not clean:
            # Not to 0, which no factor brings back.
            state["scale"] = max(state["scale"] * state["backoff_factor"], _SMALLEST)
            state["_growth_tracker"] = 0
        else:
            state["_growth_tracker"] += 1
            if state["_growth_tracker"] == state["growth_interval"]:
                state["scale"] *= state["growth_factor"]
                state["_growth_tracker"] = 0
        self._scaler.load_state_dict(state)
