"""Grey images for models that read three channels."""

from __future__ import annotations

import torch


def repeated(images: torch.Tensor) -> torch.Tensor:
    """(N, H, W) grey images as (N, 3, H, W): a view, so that memory holds one channel."""
    return images.unsqueeze(1).expand(-1, 3, -1, -1)


def channel_statistics(images: torch.Tensor) -> tuple[float, float]:
    """Mean and standard deviation of all values of (N, H, W) uint8 images, on their own scale."""
    counts = torch.zeros(256, dtype=torch.float64)
    # In parts: bincount widens its input to eight bytes a value.
    for part in torch.split(images, 4096):
        counts += torch.bincount(part.reshape(-1), minlength=256)
    values = torch.arange(256, dtype=torch.float64)
    share = counts / counts.sum()
    mean = float((share * values).sum())
    return mean, float((share * (values - mean) ** 2).sum().sqrt())
