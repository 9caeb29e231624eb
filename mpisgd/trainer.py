"""The training loop. It knows no algorithm: what ranks exchange, and when, the learner decides."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mpisgd import lines
from mpisgd.meter import EpochFigures, EpochMeter
from mpisgd.parameters import check_param_hash, param_hash
from mpisgd.phase_table import phase_table

if TYPE_CHECKING:
    from torch import nn

    from mpisgd.progress import Reporter
    from mpisgd.schedule import Plan
    from mpisgd.sync.base import AbstractLearner
    from mpisgd.sync.statistics import PublishedModel
    from mpisgd.tasks.base import AbstractTask
    from mpisgd.world import World

EVALUATION_BATCH = 128  # test samples of all ranks at a time, at least this many
_NAMED_SKIPS = 10  # per epoch; further ones are counted


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a run goes."""

    batch: int  # global samples of a minibatch
    plan: Plan
    eval_every: int = 1  # epochs; 0: at the end only
    warmup: int = 0  # samples; said in the lines
    profile: bool = False
    alone: bool = False  # ranks train alone: their parameters differ, rank 0's are published


class Trainer:
    """One run on one rank. Collective from beginning to end."""

    def __init__(
        self,
        task: AbstractTask,
        model: nn.Module,
        learner: AbstractLearner,
        *,
        world: World,
        course: Course,
        published: PublishedModel,
        reporter: Reporter,
    ) -> None:
        """`model` is what `learner` trains, `published` the copy of it that is evaluated."""
        self.task, self.model, self.learner = task, model, learner
        self.world, self.course = world, course
        self.published, self.reporter = published, reporter
        self.meter = EpochMeter(learner, world)
        self.epochs: list[EpochFigures] = []
        self.evaluations = 0
        self.error = float("nan")  # of the last evaluation
        self._epoch = 0  # multiples of the epoch's samples that have been reached
        self._bits = 32
        self._shared = True
        self._skipped_in_epoch = 0

    def run(self) -> None:
        """Train until the run's samples are reached, then evaluate."""
        started = time.perf_counter()
        learner, total = self.learner, self.course.plan.total_samples
        self._shared = learner.shard[1] == self.world.size
        self.meter.start()
        evaluated = False
        while learner.samples_seen < total:
            self._say_what_changes()
            self._train_minibatch()
            self.reporter.show(learner.samples_seen, total)
            over = learner.samples_seen // self.course.plan.epoch_samples > self._epoch
            if over or learner.samples_seen >= total:
                evaluated = self._end_epoch()
        learner.finish()
        if not evaluated:
            self._evaluate()
        self._end_run(time.perf_counter() - started)

    def _train_minibatch(self) -> None:
        """One step: minibatch, loss, gradients, exchange, update."""
        learner, batch, clock = self.learner, self.course.batch, self.learner.clock
        for group in learner.optimizer.param_groups:
            group["lr"] = self.course.plan.schedule.at(learner.samples_seen)
        with clock.phase("data"):
            k = learner.samples_seen // batch
            part = self.task.minibatch(k, batch=batch, shard=learner.shard)
        with clock.phase("forward"):
            outcome = self.task.outcome(self.model, part) if part.samples else None
        # Where all ranks compute the same minibatch, its samples count once.
        counts = learner.shard[1] == self.world.size or self.world.is_main
        self.meter.add(outcome, part.samples, counts=counts)
        loss = outcome.loss if outcome is not None else None
        learner.backward(loss, samples=part.samples, global_samples=batch)
        before = learner.samples_seen
        if not learner.step():
            self._count_skip(before)

    def _say_what_changes(self) -> None:
        """Lines for what the next step does differently."""
        learner, warmup = self.learner, self.course.warmup
        seen = learner.samples_seen
        if not self._shared and learner.shard[1] == self.world.size:
            self.reporter.line(lines.parallel_line(self.world.size, sample=seen, warmup=warmup))
            self._shared = True
        if learner.bits_on_wire != self._bits:
            self._bits = learner.bits_on_wire
            self.reporter.line(lines.quantization_line(self._bits, sample=seen, warmup=warmup))

    def _count_skip(self, sample: int) -> None:
        self._skipped_in_epoch += 1
        if self._skipped_in_epoch <= _NAMED_SKIPS:
            self.reporter.line(lines.skipped_line(sample))

    def _end_epoch(self) -> bool:
        """Report the epoch, evaluate if it is time, start the next; whether it evaluated."""
        figures = self.meter.finish()
        self.epochs.append(figures)
        seen, size = self.learner.samples_seen, self.course.plan.epoch_samples
        # A part of an epoch at the end of the run has the number that the whole would have.
        before, self._epoch = self._epoch, seen // size
        number = self._epoch if self._epoch > before else self._epoch + 1
        self._report_epoch(number, figures)
        # A minibatch that passes the ends of several epochs ends one, with the last number.
        every = self.course.eval_every
        due = every > 0 and self._epoch // every > before // every
        if due:
            self._evaluate()
        self.meter.start()
        return due

    def _report_epoch(self, number: int, figures: EpochFigures) -> None:
        more = self._skipped_in_epoch - _NAMED_SKIPS
        self._skipped_in_epoch = 0
        if more > 0:
            self.reporter.line(lines.more_skipped_line(number, more))
        self.reporter.line(
            lines.epoch_line(
                number,
                loss=figures.loss,
                error=figures.error,
                samples=figures.samples,
                seconds=figures.seconds,
            )
        )
        self.reporter.event(
            "epoch",
            epoch=number,
            samples=figures.samples,
            samples_seen=self.learner.samples_seen,
            loss=figures.loss,
            error=figures.error,
            seconds=figures.seconds,
            samples_per_s=figures.samples_per_s,
            steps=figures.steps,
            lr=self.learner.optimizer.param_groups[0]["lr"],
            bits_on_wire=self._bits,
            wire_bytes_per_rank=figures.wire_bytes_per_rank,
            messages_per_rank=figures.messages_per_rank,
            control_bytes=figures.control_bytes,
            phases=figures.phases,
            skipped_steps=figures.skipped_steps,
            param_hash=self._param_hash(),
        )

    def _param_hash(self) -> str:
        """The parameters' hash, checked to be the same on all ranks unless they train alone."""
        if self.course.alone:
            return param_hash(self.model)
        return check_param_hash(self.model, self.world)

    def _evaluate(self) -> None:
        """Test the published copy, each rank its share of the samples; report the exact sums."""
        model = self.published.refill()
        batch = max(EVALUATION_BATCH, self.world.size)
        shard = (self.world.rank, self.world.size)
        counts = self.task.evaluate(model, batch=batch, shard=shard)
        whole = np.array([counts.samples, counts.errors], np.int64)
        samples, errors = (int(total) for total in self.world.sum(whole))
        loss = float(self.world.sum(np.array([counts.loss]))[0]) / samples
        self.evaluations += 1
        self.error = errors / samples
        minibatches = -(-samples // batch)
        self.reporter.line(
            lines.evaluation_line(
                self.evaluations, minibatches=minibatches, error=self.error, samples=samples
            )
        )
        self.reporter.event(
            "eval",
            error=self.error,
            samples=samples,
            loss=loss,
            epoch=self._epoch,
            samples_seen=self.learner.samples_seen,
        )

    def _end_run(self, total_seconds: float) -> None:
        """The last event, and the profile."""
        self.reporter.event(
            "done",
            samples=self.learner.samples_seen,
            seconds=sum(figures.seconds for figures in self.epochs),
            total_seconds=total_seconds,
            error=self.error,
            param_hash=self._param_hash(),
        )
        if self.course.profile and self.epochs:
            seconds = [figures.phases_by_rank for figures in self.epochs]
            self.reporter.line(phase_table(seconds, [figures.steps for figures in self.epochs]))
