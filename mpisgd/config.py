"""The options of a training run: names, defaults, ranges, and the command line made of them.

Nothing here imports torch or MPI, so `--help` answers at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, NoReturn

from mpisgd import __version__, ranges
from mpisgd.collectives import COLLECTIVES
from mpisgd.data import DATA
from mpisgd.models import MODELS
from mpisgd.quant import QUANTIZERS
from mpisgd.refusals import refuse_unknown, refuse_value
from mpisgd.sync import SYNCS

PROGRAM = "mpisgd.train"
WARMUP_MODES = ("float32", "replicate")
DEFAULT_BATCH = 128


class ConfigError(ValueError):
    """The options cannot be honoured; the text says which one and what to do."""


def _option(default: Any, group: str, help_text: str, *, check: Any = None, **extra: Any) -> Any:
    """A field of `Options` that is a command-line option too.

    `extra`: short (other spellings), parse (text -> value), metavar, choices (allowed values).
    """
    metadata = {"group": group, "help": help_text, "check": check, **extra}
    return field(default=default, metadata=metadata)


def _number_or_name(text: str) -> float | str:
    return text if text in ranges.LR_SCALES else float(text)


_RUN, _SYNC, _LENGTH, _RATE, _MACHINE, _REPORT = (
    "what is trained",
    "how ranks exchange gradients",
    "minibatch and length of the run",
    "learning rate",
    "machine",
    "reports",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Everything that decides a run. Checked at birth: raises ConfigError."""

    model: str = _option("resnet20", _RUN, "model", choices=tuple(MODELS), short=("-n",))
    data: str = _option(
        "auto",
        _RUN,
        "data set; auto: CIFAR-10 if it is in the data directory, else the embedded digits",
        choices=("auto", *DATA),
    )
    data_dir: str | None = _option(
        None,
        _RUN,
        "where the data are (default: $MPISGD_DATA, else ./data)",
        check=ranges.text,
        short=("-datadir",),
        metavar="PATH",
    )
    seed: int = _option(
        0, _RUN, "of initial parameters, order and augmentation", check=ranges.whole(0, 2**63 - 1)
    )

    sync: str = _option(
        "data-parallel",
        _SYNC,
        "data-parallel: every step applies the mean gradient of all ranks; local: no exchange,"
        " every rank trains alone and rank 0's model is evaluated",
        choices=tuple(SYNCS),
    )
    quant: int = _option(
        32, _SYNC, "bits per gradient value", choices=tuple(sorted(QUANTIZERS)), short=("-q",)
    )
    column: int = _option(
        512, _SYNC, "values that share two levels", check=ranges.whole(1, 2**31 - 1)
    )
    min_numel: int = _option(
        4096, _SYNC, "tensors of fewer values travel as fp32", check=ranges.whole(0)
    )
    warmup: int = _option(
        0,
        _SYNC,
        "samples of all ranks before quantization starts",
        check=ranges.whole(0),
        short=("-a",),
        metavar="SAMPLES",
    )
    warmup_mode: str = _option(
        "float32",
        _SYNC,
        "until then exchange 32 bits, or let every rank compute the same whole minibatch",
        choices=WARMUP_MODES,
    )
    collective: str = _option(
        "auto",
        _SYNC,
        "how gradients are summed; plain carries 32 bits only",
        choices=("auto", *COLLECTIVES),
    )

    batch: int | None = _option(
        None,
        _LENGTH,
        f"samples of a minibatch, the sum over ranks (default: {DEFAULT_BATCH})",
        check=ranges.whole(1, 2**31 - 1),
        metavar="SAMPLES",
    )
    batch_per_rank: int | None = _option(
        None,
        _LENGTH,
        "the same, as samples of each rank",
        check=ranges.whole(1, 2**31 - 1),
        metavar="SAMPLES",
    )
    epochs: int | None = _option(
        None,
        _LENGTH,
        "length of the run (default: 160; on digits 64 with their own milestones)",
        check=ranges.whole(1, 2**31 - 1),
        short=("-e",),
    )
    epoch_size: int | None = _option(
        None,
        _LENGTH,
        "samples of an epoch (default: the training set)",
        check=ranges.whole(1),
        short=("-es",),
        metavar="SAMPLES",
    )
    max_samples: int | None = _option(
        None, _LENGTH, "end after so many samples", check=ranges.whole(1), metavar="SAMPLES"
    )

    lr: float = _option(0.1, _RATE, "learning rate", check=ranges.real(above=0.0), parse=float)
    lr_scale: float | str = _option(
        "none",
        _RATE,
        "multiply it by 1, by batch/128, by the root of that, or by a factor",
        check=ranges.lr_scale,
        parse=_number_or_name,
        metavar="none|linear|sqrt|F",
    )
    momentum: float = _option(
        0.9, _RATE, "momentum of SGD", check=ranges.real(at_least=0.0, below=1.0), parse=float
    )
    weight_decay: float = _option(
        1e-4,
        _RATE,
        "L2 decay, of all but batch norm's parameters",
        check=ranges.real(at_least=0.0),
        parse=float,
    )

    device: str = _option(
        "auto",
        _MACHINE,
        "one GPU per rank where there are any, or cpu",
        choices=("auto", "cpu", "cuda"),
    )
    threads: int | None = _option(
        None,
        _MACHINE,
        "threads of a rank (default: the cores of its node / ranks there)",
        check=ranges.whole(1, 65536),
    )
    allow_gpu_sharing: bool = _option(
        False, _MACHINE, "several ranks may use one GPU", check=ranges.boolean
    )

    eval_every: int = _option(
        1,
        _REPORT,
        "evaluate after so many epochs; 0: at the end only",
        check=ranges.whole(0),
        metavar="EPOCHS",
    )
    log_dir: str | None = _option(
        None,
        _REPORT,
        "write the lines to DIR/train.log too",
        check=ranges.text,
        short=("-logdir",),
        metavar="DIR",
    )
    json: str | None = _option(
        None, _REPORT, "append one JSON object per event to FILE", check=ranges.text, metavar="FILE"
    )
    profile: bool = _option(
        False, _REPORT, "at the end, a table of the time that each phase took", check=ranges.boolean
    )
    all_ranks: bool = _option(
        False,
        _REPORT,
        "every rank prints its lines and writes DIR/train.rankN.log",
        check=ranges.boolean,
    )

    def __post_init__(self) -> None:
        """Check every value and their combinations."""
        for option in fields(self):
            value = getattr(self, option.name)
            if value is not None or option.default is not None:
                _check(option, value)
        _check_together(self)

    def global_batch(self, size: int) -> int:
        """Samples of a minibatch on `size` ranks together."""
        if self.batch_per_rank is not None:
            return self.batch_per_rank * size
        return self.batch or DEFAULT_BATCH

    def as_text(self) -> list[tuple[str, str]]:
        """(name on the command line, value) of every option, for comparison between ranks."""
        return [(flag(option), repr(getattr(self, option.name))) for option in fields(self)]


def flag(option: Field[Any]) -> str:
    """The option's name on the command line."""
    return "--" + option.name.replace("_", "-")


def _check(option: Field[Any], value: Any) -> None:
    """Raise ConfigError unless `value` is allowed for `option`."""
    allowed = option.metadata.get("choices")
    if allowed is not None:
        if value not in allowed or isinstance(value, bool):
            refuse_value(flag(option), value, ConfigError)
            raise ConfigError(
                f"{flag(option)}: got {value}; must be one of {', '.join(map(str, allowed))}"
            )
        return
    wanted = option.metadata["check"](value)
    if wanted:
        raise ConfigError(f"{flag(option)}: got {value!r}; wanted {wanted}")


def _check_together(options: Options) -> None:
    """Raise ConfigError for combinations that cannot be honoured."""
    if options.batch is not None and options.batch_per_rank is not None:
        raise ConfigError(
            "--batch: given together with --batch-per-rank; they are two ways to say the same:"
            " leave one out"
        )
    if options.sync == "local":
        unused = {
            "--quant": options.quant != 32,
            "--warmup": options.warmup != 0,
            "--warmup-mode": options.warmup_mode != "float32",
            "--collective": options.collective != "auto",
            "--column": options.column != 512,
            "--min-numel": options.min_numel != 4096,
        }
        for name, given in unused.items():
            if given:
                raise ConfigError(
                    f"{name}: given together with --sync local, which exchanges nothing; leave one"
                    " of them out"
                )
    if options.warmup_mode == "replicate" and options.warmup == 0:
        raise ConfigError(
            "--warmup-mode: replicate without a warm start has no effect; give --warmup SAMPLES too"
        )


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing and exiting: only one rank may print."""

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into ours."""
        message = message.replace("ignored explicit argument", "takes no value; got")
        name, separator, rest = message.removeprefix("argument ").partition(": ")
        text = f"{name.rsplit('/', 1)[-1]}: {rest}" if separator else message
        raise ConfigError(f"{text}; see --help")


class Answer(Exception):
    """The command line asked for a text instead of a run: --help or --version."""


class _Answering(argparse.Action):
    """--help and --version: the text leaves by an exception, for one rank to print."""

    def __call__(self, parser: argparse.ArgumentParser, *unused: Any, **unused_too: Any) -> None:
        raise Answer(parser.format_help() if self.dest == "help" else f"{PROGRAM} {__version__}\n")


def make_parser() -> argparse.ArgumentParser:
    """The command line, made of the fields of `Options`."""
    parser = _Parser(
        prog=f"python -m {PROGRAM}",
        description="Train a model on all ranks that mpiexec starts; also runs without mpiexec.",
        epilog="example: mpiexec -n 4 python -m mpisgd.train --quant 1 --warmup 50000",
        allow_abbrev=False,
        add_help=False,
        argument_default=argparse.SUPPRESS,
    )
    for dest, names in (("help", ("-h", "--help")), ("version", ("--version",))):
        help_text = f"show {'this help' if dest == 'help' else 'the version'} and exit"
        parser.add_argument(*names, dest=dest, action=_Answering, nargs=0, help=help_text)
    groups: dict[str, Any] = {}
    for option in fields(Options):
        title = option.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add(groups[title], option)
    return parser


def _add(group: Any, option: Field[Any]) -> None:
    """Add one option to the command line."""
    names = (flag(option), *option.metadata.get("short", ()))
    text, default = option.metadata["help"], option.default
    if isinstance(default, bool):
        group.add_argument(*names, dest=option.name, action="store_true", help=text)
        return
    choices = option.metadata.get("choices")
    if choices:
        text += f"; one of {', '.join(map(str, choices))}"
    if default is not None:
        text += f" (default: {default})"
    metavar = option.metadata.get("metavar") or ("NAME" if choices else "N")
    parse = option.metadata.get("parse") or (str if _is_text(option) else int)
    group.add_argument(*names, dest=option.name, type=_reader(parse), metavar=metavar, help=text)


def _is_text(option: Field[Any]) -> bool:
    return isinstance(option.default, str) or option.metadata.get("check") is ranges.text


def _reader(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """From text to a value. What `parse` cannot read stays text: `Options` says what was wanted."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError:
            return text

    return read


def parse(arguments: Sequence[str]) -> Options:
    """Options from command-line arguments.

    Raises:
        ConfigError: an unknown name, a value out of range, a combination that cannot be honoured.
        Answer: for --help and --version, with the text to print.
    """
    parser = make_parser()
    known, rest = parser.parse_known_args(list(arguments))
    if rest:
        names = [name for action in parser._actions for name in action.option_strings]
        refuse_unknown(rest, names, ConfigError)
    return Options(**vars(known))
