"""What this version does not have, by name: the answer to options and values that are not built."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_CHECKPOINTS = "checkpoints come with a later release"
_BLOCKS = "block momentum and model averaging come with a later release"
_ASYNC = "asynchronous modes come with a later release"
_OVERLAP = "exchanging while backward runs comes with a later release"

# Option -> why it is not there. All spellings.
NOT_YET_OPTIONS = {
    "--checkpoint": _CHECKPOINTS,
    "-outputdir": _CHECKPOINTS,
    "--resume": _CHECKPOINTS,
    "-r": _CHECKPOINTS,
    "--restart": _CHECKPOINTS,
    "--save-every": _CHECKPOINTS,
    "--block-size": _BLOCKS,
    "-b": _BLOCKS,
    "--block-momentum": _BLOCKS,
    "--block-lr": _BLOCKS,
    "--nesterov": _BLOCKS,
    "--async-blocks": _ASYNC,
    "--overlap": _ASYNC,
    "--period": _ASYNC,
    "--comm-thread": _OVERLAP,
    "--delay": _OVERLAP,
    "--timeline": "a later release writes timelines; --profile shows the time of each phase",
    "--auto-batch": "choosing the minibatch comes with a later release; give --batch",
    "--range": "codes of 2 to 8 bits come with a later release",
    "--rounding": "codes of 2 to 8 bits come with a later release",
    "--fp16": "mixed precision comes with a later release",
    "-fp16": "mixed precision comes with a later release",
}

# CNTK's spelling -> what to write here.
SPELLED_HERE = {
    "--scale_up": "--batch-per-rank SAMPLES",
    "-s": "--batch-per-rank SAMPLES",
    "-device": "--device NAME",
    "-profile": "--profile",
}

_LATER_BITS = "this width comes with a later release"
_LATER_MODE = "this mode comes with a later release"
_LATER_MODEL = "detection and segmentation come with a later release"
_LATER_COLLECTIVE = "this collective comes with a later release"

# Option -> value -> why it is not there.
NOT_YET_VALUES = {
    "--quant": dict.fromkeys(("2", "3", "4", "6", "8", "16", "auto"), _LATER_BITS),
    "--sync": dict.fromkeys(("block-momentum", "model-averaging", "async"), _LATER_MODE),
    "--warmup-mode": {"block-momentum": _LATER_MODE},
    "--model": dict.fromkeys(("unet", "fasterrcnn", "maskrcnn", "msrcnn"), _LATER_MODEL),
    "--data": {"voc": _LATER_MODEL},
    "--collective": dict.fromkeys(("gather", "ring", "int-sum", "two-level"), _LATER_COLLECTIVE),
}


def refuse_value(option: str, value: object, error: type[ValueError]) -> None:
    """Raise `error` if `value` is one that a later version has; do nothing otherwise."""
    reason = NOT_YET_VALUES.get(option, {}).get(str(value))
    if reason:
        raise error(f"{option} {value}: not available in this version ({reason}); choose another")


def refuse_unknown(rest: Sequence[str], known: Sequence[str], error: type[ValueError]) -> None:
    """Raise `error` for the first of the arguments `rest`, which no option of this version took."""
    name = rest[0].partition("=")[0]
    if name in NOT_YET_OPTIONS:
        raise error(
            f"{name}: not available in this version ({NOT_YET_OPTIONS[name]}); leave it out"
        )
    if name in SPELLED_HERE:
        raise error(f"{name}: not an option here; use {SPELLED_HERE[name]} instead")
    short = name[:2]
    if short in NOT_YET_OPTIONS and short != "--":  # its value written right behind it
        raise error(
            f"{short}: not available in this version ({NOT_YET_OPTIONS[short]}); leave it out"
        )
    if not name.startswith("-"):
        raise error(f"{rest[0]!r}: belongs to no option; options start with -- (see --help)")
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    hint = f"did you mean {close[0]}? " if close else ""
    raise error(f"{name}: unknown option; {hint}known are {', '.join(sorted(known))}")
