"""The hash of a model's parameters ("param_hash")."""

from __future__ import annotations

import hashlib

import torch


def parameter_hash(model: torch.nn.Module) -> str:
    """16 hexadecimal digits over all parameters, buffers excluded."""
    digests = [
        hashlib.sha256(little_endian(parameter)).digest()[:8] for parameter in model.parameters()
    ]
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]


def little_endian(parameter: torch.Tensor) -> bytes:
    """Values in C order, in their own dtype."""
    values = parameter.detach().cpu().contiguous()
    if values.dtype == torch.bfloat16:  # numpy has none: its two bytes
        values = values.view(torch.int16)
    array = values.numpy()
    return array.astype(array.dtype.newbyteorder("<")).tobytes()
