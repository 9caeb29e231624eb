"""Which parameters are exchanged, in which order, and the hash that proves them equal.

The definitions are docs/arithmetic.md, "Parameters and buckets" and "param_hash".
"""

from __future__ import annotations

import hashlib
import inspect
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

if TYPE_CHECKING:
    from mpisgd.world import World

# Gradients of these are exact in the fp32 buckets; everything else is refused by name.
EXCHANGED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def exchanged_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that are exchanged, in wire order.

    Those of the optimizer that require grad: the model's in reverse registration order, tied ones
    once, after those that the model does not own.

    Raises:
        TypeError: a parameter's dtype, layout or device cannot be exchanged exactly.
        ValueError: the optimizer holds no parameter that requires grad.
    """
    wanted = {
        id(p): (f"optimizer.group{g}[{i}]", p)
        for g, group in enumerate(optimizer.param_groups)
        for i, p in enumerate(group["params"])
        if p.requires_grad
    }
    named = [(name, p) for name, p in model.named_parameters() if id(p) in wanted]
    owned = {id(p) for _, p in named}
    named += [entry for key, entry in wanted.items() if key not in owned]
    if not named:
        raise ValueError(
            "optimizer: holds no parameter that requires grad; there is nothing to exchange: pass"
            " the optimizer of this model, made after freezing and before this call"
        )
    for name, parameter in named:
        _check(name, parameter)
    return named[::-1]


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError for an optimizer whose step needs more than the mean gradient."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"optimizer: {type(optimizer).__name__}.step() needs a closure, which would compute"
            " gradients of this rank alone; use an optimizer whose step() takes none"
        )


def describe_optimizer(
    optimizer: torch.optim.Optimizer, parameters: list[tuple[str, nn.Parameter]]
) -> list[tuple[str, str]]:
    """What must be the same of the optimizer on all ranks: its class, and who is in which group."""
    names = {id(p): name for name, p in parameters}
    groups = [
        (f"optimizer group {g}", ", ".join(names.get(id(p), "(frozen)") for p in group["params"]))
        for g, group in enumerate(optimizer.param_groups)
    ]
    return [("optimizer", type(optimizer).__name__), *groups]


def _check(name: str, parameter: nn.Parameter) -> None:
    """Refuse what the buckets cannot carry exactly."""
    if parameter.dtype not in EXCHANGED_DTYPES:
        raise TypeError(
            f"parameter {name}: dtype is {parameter.dtype}; gradients travel as float32, which is"
            " exact for float32, float16 and bfloat16 only: convert the model with .float(), or"
            " freeze this parameter"
        )
    if parameter.layout != torch.strided:
        raise TypeError(
            f"parameter {name}: layout is {parameter.layout}; only dense (strided) parameters are"
            " exchanged: make it dense, or freeze it"
        )
    if parameter.device.type not in ("cpu", "cuda"):
        raise TypeError(
            f"parameter {name}: is on device {parameter.device}; wanted cpu or cuda: move the model"
            " there before making the learner"
        )


def raw_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """The values of a tensor in C order, as bytes on the host."""
    host = tensor.detach().cpu().contiguous().reshape(-1)
    return host.view(torch.uint8).numpy() if host.numel() else np.empty(0, np.uint8)


def _digests(model: nn.Module) -> list[tuple[str, bytes]]:
    """The first 8 bytes of SHA-256 over each parameter."""
    return [
        (name, hashlib.sha256(raw_bytes(parameter).data).digest()[:8])
        for name, parameter in model.named_parameters()
    ]


def _total(digests: list[tuple[str, bytes]]) -> str:
    return hashlib.sha256(b"".join(digest for _, digest in digests)).hexdigest()[:16]


def param_hash(model: nn.Module) -> str:
    """64-bit hash of all parameters, buffers excluded, as 16 hexadecimal digits."""
    return _total(_digests(model))


def check_param_hash(model: nn.Module, world: World) -> str:
    """`param_hash(model)`, after checking that it is the same on every rank. Collective.

    Raises:
        ValueError: on all ranks, naming the first parameter that differs and the ranks.
    """
    digests = _digests(model)
    world.check_same("parameters", [(name, digest.hex()) for name, digest in digests])
    return _total(digests)
