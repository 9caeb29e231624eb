"""Gradients in and out of flat fp32 buckets: the place where torch meets numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .layout import Layout


class Storage:
    """The memory of one bucket: on the host (pinned for a GPU), and on the device."""

    def __init__(self, numel: int, device: torch.device) -> None:
        """Room for `numel` fp32 values of gradients that live on `device`."""
        on_gpu = device.type == "cuda"
        self.host = torch.zeros(numel, dtype=torch.float32, pin_memory=on_gpu)
        self.flat = torch.zeros(numel, device=device) if on_gpu else self.host

    def to_host(self) -> None:
        """Bring the device's values to the host."""
        if self.flat is not self.host:
            self.host.copy_(self.flat)

    def from_host(self) -> None:
        """Take the host's values to the device."""
        if self.flat is not self.host:
            self.flat.copy_(self.host)


class Bucket:
    """The gradients of some parameters as one flat vector, ordered by a layout.

    `values` is numpy's view of the host memory, what collectives work on. p.grad never aliases it.
    """

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[tuple[str, nn.Parameter]],
        storage: Storage | None = None,
    ) -> None:
        """A bucket over `layout`, whose names are all in `parameters`; `storage` may be shared."""
        by_name = dict(parameters)
        self.layout = layout
        self.parameters = [by_name[piece.name] for piece in layout.pieces]
        device = next((p.device for p in self.parameters), torch.device("cpu"))
        self.storage = storage if storage is not None else Storage(layout.numel, device)
        self.values: np.ndarray = self.storage.host.numpy()
        self._views = [
            self.storage.flat[piece.start : piece.stop].view(piece.shape) for piece in layout.pieces
        ]

    def load(self, gradients: Mapping[int, Tensor], factor: float) -> None:
        """Fill `values` with gradient * float32(factor), in fp32.

        Args:
            gradients: id of a parameter -> its gradient; a missing one is zeros.
            factor: rounded to float32 before it is used.
        """
        for parameter, view in zip(self.parameters, self._views, strict=True):
            gradient = gradients.get(id(parameter))
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient)
        scale = float(np.float32(factor))
        if scale != 1.0:
            self.storage.flat.mul_(scale)
        self.storage.to_host()

    def store(self, touched: set[int]) -> None:
        """Give each parameter its part of `values`, rounded once to its dtype.

        A parameter whose id is not in `touched` gets None.
        """
        self.storage.from_host()
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if id(parameter) not in touched:
                parameter.grad = None
            elif parameter.grad is None or parameter.grad.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter, requires_grad=False).copy_(view)
            else:
                parameter.grad.detach().copy_(view)

    def coded_slice(self, index: int) -> slice | None:
        """Where piece `index` lies among the coded values; None if it is raw or empty."""
        piece = self.layout.pieces[index]
        if not piece.coded or not piece.numel:
            return None
        return slice(piece.start - self.layout.raw_numel, piece.stop - self.layout.raw_numel)
