"""What every learner shares: counters, the accumulate context, and the order of its calls."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mpisgd.collectives.wire import Wire
from mpisgd.parameters import check_optimizer, describe_optimizer, exchanged_parameters
from mpisgd.timing import Clock

from .counting import check_samples, check_weight
from .scaling import Scaler

if TYPE_CHECKING:
    from mpisgd.world import World


class AbstractLearner(ABC):
    """A model and its optimizer on one rank, and their dealings with the other ranks.

    One step is `backward(loss, samples=...)`, optionally `wait()`, then `step()`; all ranks call
    them equally often.

    Attributes:
        model: this rank's model.
        optimizer: its optimizer.
        world: the ranks.
        parameters: names and parameters that are exchanged, in wire order.
        samples_seen: samples of all ranks so far, skipped steps included.
        steps: steps that moved the weights.
        skipped_steps: steps that did not, because of a gradient that was not finite.
        wire: bytes, messages and seconds of this rank's exchanges so far.
        clock: seconds of this rank by phase.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        world: World,
        scaler: Any | None = None,
    ) -> None:
        """`model` and `optimizer` of this rank; `scaler`: a GradScaler that the learner drives."""
        self.model = model
        self.optimizer = optimizer
        self.world = world
        check_optimizer(optimizer)
        self.parameters = exchanged_parameters(model, optimizer)
        self.samples_seen = 0  # global
        self.steps = 0  # that moved the weights
        self.skipped_steps = 0
        self.wire = Wire()
        self.clock = Clock()
        self._scaler = Scaler(scaler)
        self._exchanged = {id(p) for _, p in self.parameters}
        self._accumulating = False  # inside no_sync()
        self._open = False  # a backward() that step() has not used yet
        self._finished = False
        self._local_samples = 0
        self._local_weight = 0.0
        self._global_samples: int | None = 0  # None: some backward() did not say
        self._sums: dict[int, Tensor] = {}  # id -> sum of weighted gradients of the passes so far
        self._last_loss: Tensor | None = None
        self._summing = False  # whether this step has more than one pass
        self._drop_gradients()  # of before: from now on p.grad is the learner's

    def _state_items(self) -> list[tuple[str, str]]:
        """What must be the same on all ranks: parameters in wire order, and the optimizer."""
        named = [(name, f"{tuple(p.shape)} {p.dtype}") for name, p in self.parameters]
        return [*named, *describe_optimizer(self.optimizer, self.parameters)]

    @property
    def shard(self) -> tuple[int, int]:
        """(rank, size): this learner takes samples rank, rank + size, ... of a minibatch."""
        return self.world.rank, self.world.size

    @property
    def bits_on_wire(self) -> int:
        """Bits per value of the exchange that the next step does."""
        return 32

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward() accumulates; the first one outside exchanges the mean of all."""
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    def backward(
        self,
        loss: Tensor | None,
        *,
        samples: int,
        weight: float | None = None,
        global_samples: int | None = None,
    ) -> None:
        """Compute gradients of this rank's mean loss. All ranks call it equally often.

        Args:
            loss: scalar, a mean over `weight` units; may be None if samples is 0, and its gradients
                are ignored then.
            samples: this rank's samples in the batch.
            weight: units the loss is a mean over (tokens, boxes); None: samples.
            global_samples: sum of `samples` over all ranks, if the caller knows it on every rank
                and all ranks make the same number of steps; nothing is sent then, unless `weight`
                is given.

        Raises:
            RuntimeError: a second call before step() outside `no_sync()`, or after finish().
            TypeError, ValueError: samples or weight out of range, or no loss for some samples.
        """
        samples = check_samples(samples)
        units = check_weight(samples if weight is None else weight)
        if global_samples is not None:
            global_samples = check_samples(global_samples, "global_samples")
        self._check_backward(loss, samples, global_samples)
        self._compute(loss, units)
        self._last_loss = None if loss is None else loss.detach()
        self._count(samples, units, None if weight is not None else global_samples)
        if self._accumulating or self._summing:
            self._add_pass(units)
        if not self._accumulating:
            self._start_step()
            self._open = True

    def _compute(self, loss: Tensor | None, units: float) -> None:
        """Fill p.grad. A pass that fails leaves nothing behind: it may be tried again."""
        self._drop_gradients()  # what others left there, such as the other learner of a GAN
        try:
            with self.clock.phase("backward"):
                if units > 0 and loss is not None:  # of no units, even a NaN weighs nothing
                    torch.autograd.backward(self._scaler.scale(loss))
            self._check_gradients()
        except BaseException:
            self._drop_gradients()
            raise

    def _check_backward(self, loss: Tensor | None, samples: int, expected: int | None) -> None:
        if self._finished:
            raise RuntimeError(
                "backward: finish() was called; make a new learner to go on training"
            )
        if self._open:
            raise RuntimeError(
                "backward: called twice before step(); call step() after each backward(), or"
                " accumulate inside `with learner.no_sync():`"
            )
        if loss is not None and not (isinstance(loss, Tensor) and loss.numel() == 1):
            kind = type(loss).__name__
            came = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {kind}"
            raise TypeError(f"backward: loss is {came}; wanted a tensor of one value, a mean loss")
        if loss is None and samples:
            raise TypeError(
                f"backward: loss is None but samples is {samples}; pass the mean loss of this"
                " rank's batch, or samples=0 if it has none"
            )
        if expected is not None and expected < samples:
            raise ValueError(
                f"backward: global_samples is {expected}, below this rank's own {samples}; pass the"
                " sum over all ranks, or leave it out"
            )

    def _count(self, samples: int, units: float, expected: int | None) -> None:
        """Add one backward pass to the totals of the step."""
        self._local_samples += samples
        self._local_weight += units
        if expected is None or self._global_samples is None:
            self._global_samples = None
        else:
            self._global_samples += expected

    def _add_pass(self, units: float) -> None:
        """Move p.grad, weighted, to the sums of this step."""
        weight = float(np.float32(units))
        for _, parameter in self.parameters:
            if parameter.grad is None:
                continue
            weighted = parameter.grad.detach().float() * weight
            if id(parameter) in self._sums:
                self._sums[id(parameter)] += weighted
            else:
                self._sums[id(parameter)] = weighted
        self._summing = True
        self._drop_gradients()

    @abstractmethod
    def _start_step(self) -> None:
        """Called when the last backward pass of a step is done."""

    @abstractmethod
    def wait(self) -> bool:
        """Bring the gradients to their final state; False: the step will be skipped."""

    @abstractmethod
    def step(self) -> bool:
        """wait(), then the optimizer step unless skipped; True if the weights moved."""

    @abstractmethod
    def finish(self) -> None:
        """This rank has no more data. Collective: ends when every rank has called it."""

    def _check_between_steps(self, call: str) -> None:
        if self._open or self._summing:
            raise RuntimeError(f"{call}: a backward() has no step() yet; call step() first")

    def _apply(self, clean: bool) -> bool:
        """Step the optimizer if the gradients are clean, and make ready for the next step."""
        with self.clock.phase("optimizer"):
            if clean:
                self.optimizer.step()
            self._scaler.update(clean=clean)
            self._drop_gradients()
        self.steps += clean
        self.skipped_steps += not clean
        self._reset_step()
        return clean

    def _share(self, weight: float) -> float:
        """By what this rank's gradients are multiplied: its share of a mean over `weight` units."""
        mine = 1.0 if self._summing else self._local_weight
        return mine / weight / self._scaler.factor

    def _gradients(self) -> dict[int, Tensor]:
        """Id of a parameter -> this rank's gradient of the step, where there is one."""
        if self._summing:
            return self._sums
        return {id(p): p.grad.detach() for _, p in self.parameters if p.grad is not None}

    def _finish_alone(self) -> bool:
        """Make p.grad this rank's own mean; False if it is not finite.

        A single pass leaves p.grad as autograd made it, so that one rank is plain torch bit for
        bit; only the gradient scaler's factor is taken out.
        """
        share = float(np.float32(self._share(self._local_weight)))
        for _, parameter in self.parameters:
            if id(parameter) in self._sums:
                mean = self._sums[id(parameter)].mul_(share)
                parameter.grad = torch.empty_like(parameter, requires_grad=False).copy_(mean)
            elif parameter.grad is not None and share != 1.0:
                parameter.grad.detach().mul_(share)
        return self._finite_gradients()

    def _reset_step(self) -> None:
        self._open, self._summing = False, False
        self._sums = {}
        self._local_samples, self._local_weight, self._global_samples = 0, 0.0, 0

    def _drop_gradients(self) -> None:
        for _, parameter in self.parameters:
            parameter.grad = None

    def _finite_gradients(self) -> bool:
        """Whether every gradient value here is finite (NaN-safe)."""
        gradients = (p.grad for _, p in self.parameters if p.grad is not None)
        return all(bool(torch.isfinite(gradient).all()) for gradient in gradients)

    def _check_gradients(self) -> None:
        """Refuse sparse gradients, and gradients of optimizer parameters that are not exchanged."""
        for name, parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                raise TypeError(
                    f"gradient of {name}: layout is {parameter.grad.layout}; only dense gradients"
                    " are exchanged: use sparse=False in its layer"
                )
        for g, group in enumerate(self.optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                foreign = id(parameter) not in self._exchanged and parameter.requires_grad
                if parameter.grad is not None and foreign:
                    raise RuntimeError(
                        f"optimizer: parameter {i} of group {g} was added or unfrozen after the"
                        " learner was made, so it would not be exchanged; make a new learner after"
                        " changing the optimizer (its state_dict can be carried over)"
                    )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Learners own communicators: they are neither copied nor pickled."""
        raise TypeError(
            f"{type(self).__name__}: cannot be copied or pickled, as it owns communicators; save"
            " state_dict(), and load it into a new learner"
        )


def check_keys(state: Any, names: Sequence[str]) -> None:
    """Raise ValueError unless `state` is a dict with exactly these keys."""
    came = sorted(state) if isinstance(state, dict) else type(state).__name__
    if came != sorted(names):
        raise ValueError(
            f"learner state: got {came}; wanted {sorted(names)}: load what state_dict() of a"
            " learner of the same class gave"
        )
