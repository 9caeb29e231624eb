"""From options to a trainer, stage by stage: no rank enters a stage that another did not reach."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mpisgd import __version__, models
from mpisgd.banner import Facts, banner
from mpisgd.config import ConfigError, Options
from mpisgd.data import Loaded, load
from mpisgd.exchange import choose_collective
from mpisgd.progress import Bar, Reporter
from mpisgd.schedule import Plan, make_plan, scaled_rate
from mpisgd.sync import SYNCS
from mpisgd.sync.base import AbstractLearner
from mpisgd.sync.statistics import PublishedModel
from mpisgd.tasks.classification import Classification
from mpisgd.trainer import Course, Trainer
from mpisgd.world import World

T = TypeVar("T")

# What a user can cause and put right. Anything else is a fault of ours: it ends with a traceback.
_USER_ERRORS = (ValueError, OSError, ImportError)


def together(world: World, build: Callable[[], T], *, undo: Callable[[T], None] | None = None) -> T:
    """`build()`, and the news from all ranks that it worked. Collective.

    Args:
        world: the ranks.
        build: what this rank does.
        undo: gives back what `build` took, if it worked here and failed elsewhere.

    Raises:
        SetupError: on all ranks, if it failed on any.
    """
    try:
        result = build()
    except _USER_ERRORS as error:
        world.collect_errors(error)
        raise  # not reached: collect_errors raises wherever a rank passes an error
    try:
        world.collect_errors(None)
    except ValueError:
        if undo is not None:
            undo(result)
        raise
    return result


def prepare(world: World, options: Options) -> Trainer:
    """Everything that is needed to train. Collective.

    Raises:
        ValueError: on all ranks, with the same text.
    """
    world.check_same("options", options.as_text())
    collective = together(world, lambda: _collective(options))
    reporter = together(world, lambda: open_reporter(options, world), undo=Reporter.close)
    try:
        return _assemble(world, options, reporter, collective)
    except BaseException:
        reporter.close()
        raise


def _assemble(world: World, options: Options, reporter: Reporter, collective: str) -> Trainer:
    """Data, model, learner, banner. Collective."""
    loaded = together(world, lambda: _load(options))
    _check_same_data(world, loaded)
    model = together(world, lambda: _build_model(options, loaded, world))
    batch = options.global_batch(world.size)
    plan = _plan(options, loaded, batch)
    published = PublishedModel(model, world, from_main=options.sync == "local")
    optimizer = make_optimizer(model, options, plan)
    _seed_rank(options.seed, world.rank)
    learner = together(world, lambda: _learner(model, optimizer, options, world))
    facts = _facts(world, options, loaded, model, learner, plan, collective)
    config = {"options": _plain(options), **facts.as_event()}
    together(world, lambda: reporter.begin(banner(facts), **config))
    course = Course(
        batch=batch,
        plan=plan,
        eval_every=options.eval_every,
        warmup=options.warmup,
        profile=options.profile,
        alone=options.sync == "local",
    )
    task = Classification(loaded.dataset, seed=options.seed, device=world.device)
    return Trainer(
        task, model, learner, world=world, course=course, published=published, reporter=reporter
    )


def _collective(options: Options) -> str:
    try:
        return choose_collective(options.collective, options.quant)
    except ValueError as error:
        raise ConfigError(
            f"--collective: {options.collective} cannot carry {options.quant} bit"
            f"{'s' * (options.quant != 1)}; use --collective auto or stripes, or --quant 32"
        ) from error


def open_reporter(options: Options, world: World) -> Reporter:
    """Where this rank reports to. Raises ConfigError if a file cannot be written."""
    log = None
    if options.log_dir is not None and (world.is_main or options.all_ranks):
        name = f"train.rank{world.rank}.log" if options.all_ranks else "train.log"
        log = Path(options.log_dir) / name
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.open("a").close()
        except OSError as error:
            raise _unwritable("--log-dir", log, error) from error
    events = Path(options.json) if options.json is not None and world.is_main else None
    try:
        return Reporter(
            speaks=world.is_main or options.all_ranks,
            prefix=f"[rank {world.rank}] " if options.all_ranks else "",
            log=log,
            events=events,
            bar=Bar(sys.stderr) if world.is_main else None,
        )
    except OSError as error:
        raise _unwritable("--json", events, error) from error


def _unwritable(option: str, path: Path | None, error: OSError) -> ConfigError:
    return ConfigError(
        f"{option}: cannot write {path}: {error.strerror or error}; name a place that exists and"
        " may be written to"
    )


def _load(options: Options) -> Loaded:
    return load(options.data, data_dir=options.data_dir, kind=models.kind_of(options.model))


def _check_same_data(world: World, loaded: Loaded) -> None:
    """Ranks on other nodes may have found other files. Raises ValueError on all ranks."""
    dataset = loaded.dataset
    labels = dataset.train_labels.numpy().astype(np.int64)
    # Weighted by position, so that the same labels in another order differ.
    position = np.arange(1, len(labels) + 1, dtype=np.int64)
    world.check_same(
        "data",
        [
            ("data set", dataset.name),
            ("training samples", str(dataset.train_size)),
            ("test samples", str(dataset.test_size)),
            ("checksum of the labels", str(int((labels * position).sum()))),
        ],
    )


def _build_model(options: Options, loaded: Loaded, world: World) -> nn.Module:
    """The model on its device, from the seed. Raises ValueError if it can't take data or batch."""
    dataset = loaded.dataset
    torch.manual_seed(options.seed)
    model = models.build(
        options.model,
        classes=dataset.classes,
        channels=dataset.channels,
        image_size=dataset.image_size,
    )
    batch, size = options.global_batch(world.size), world.size
    if batch < 2 * size and models.has_batch_norm(model):
        raise ConfigError(
            f"--batch: {batch} over {size} rank{'s' * (size != 1)} leaves {batch // size}"
            f" sample{'s' * (batch // size != 1)} on some; batch norm in {options.model} needs at"
            f" least 2 on each: give --batch {2 * size} or more, or fewer ranks"
        )
    return model.to(world.device)


def make_optimizer(model: nn.Module, options: Options, plan: Plan) -> torch.optim.Optimizer:
    """SGD as CNTK's recipe has it: no decay of batch norm's scales and offsets."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    plain = {id(p) for norm in norms for p in norm.parameters(recurse=False)}
    decayed = [p for p in model.parameters() if id(p) not in plain]
    kept = [p for p in model.parameters() if id(p) in plain]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": options.weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    return torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=plan.schedule.at(0),
        momentum=options.momentum,
    )


def _plan(options: Options, loaded: Loaded, batch: int) -> Plan:
    return make_plan(
        model=options.model,
        data=loaded.dataset.name,
        train_size=loaded.dataset.train_size,
        rate=scaled_rate(options.lr, options.lr_scale, batch),
        epochs=options.epochs,
        epoch_size=options.epoch_size,
        max_samples=options.max_samples,
    )


def _seed_rank(seed: int, rank: int) -> None:
    """Random choices while training (dropout) come from (seed, rank)."""
    state = np.random.SeedSequence((seed, 2, rank)).generate_state(1, np.uint64)
    torch.manual_seed(int(state[0]))


def _learner(
    model: nn.Module, optimizer: torch.optim.Optimizer, options: Options, world: World
) -> AbstractLearner:
    """Collective; what it refuses, it refuses on all ranks alike."""
    exchange: dict[str, Any] = {}
    if options.sync == "data-parallel":
        exchange = {
            "quant": options.quant,
            "warmup": options.warmup,
            "warmup_mode": options.warmup_mode,
            "collective": options.collective,
            "column": options.column,
            "min_numel": options.min_numel,
        }
    learner: AbstractLearner = SYNCS[options.sync](model, optimizer, world=world, **exchange)
    return learner


def _devices(world: World) -> tuple[tuple[str, ...], ...]:
    """For each node the device of each of its ranks. Collective."""
    table = np.zeros((world.size, 2), np.int64)
    index = -1 if world.device.type == "cpu" else (world.device.index or 0)
    table[world.rank] = world.node, index
    nodes: list[list[str]] = [[] for _ in range(world.nodes)]
    for node, gpu in world.sum(table):
        nodes[node].append("cpu" if gpu < 0 else f"cuda:{gpu}")
    return tuple(map(tuple, nodes))


def _facts(
    world: World,
    options: Options,
    loaded: Loaded,
    model: nn.Module,
    learner: Any,
    plan: Plan,
    collective: str,
) -> Facts:
    """What the banner shows. Collective."""
    parameters = list(model.parameters())
    batch = options.global_batch(world.size)
    return Facts(
        version=__version__,
        ranks=world.size,
        devices=_devices(world),
        threads=world.threads,
        mpi=world.mpi_version,
        model=options.model,
        parameters=sum(parameter.numel() for parameter in parameters),
        tensors=len(parameters),
        data=loaded.dataset.name,
        train_size=loaded.dataset.train_size,
        test_size=loaded.dataset.test_size,
        hint=loaded.hint,
        sync=options.sync,
        batch=batch,
        rate=plan.schedule.rate,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
        seed=options.seed,
        total_samples=plan.total_samples,
        epoch_samples=plan.epoch_samples,
        bits=options.quant,
        collective=collective,
        warmup=options.warmup,
        warmup_mode=options.warmup_mode,
        payload_32=learner.payload_bytes(32),
        payload_bits=learner.payload_bytes(options.quant),
        idle_options=_idle_options(options),
        world_warnings=tuple(world.warnings),
    )


def _idle_options(options: Options) -> tuple[str, ...]:
    """Options of quantization that were given for a run that does not quantize."""
    if options.quant != 32 or options.sync == "local":
        return ()
    given = {
        f"--warmup {options.warmup}": options.warmup and options.warmup_mode == "float32",
        f"--column {options.column}": options.column != 512,
        f"--min-numel {options.min_numel}": options.min_numel != 4096,
    }
    return tuple(name for name, idle in given.items() if idle)


def _plain(options: Options) -> dict[str, Any]:
    return {
        name.removeprefix("--"): getattr(options, name.removeprefix("--").replace("-", "_"))
        for name, _ in options.as_text()
    }
