"""What a value of an option may be: checks that return None, or what was wanted instead."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, TypeAlias

Check: TypeAlias = Callable[[Any], "str | None"]

LARGEST = 2**62  # of what is counted in samples: the sum of two stays an int64
LR_SCALES = ("none", "linear", "sqrt")


def is_whole(value: Any) -> bool:
    """Whether it is an integer of Python or numpy, and not True or False."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def require(name: str, value: Any, check: Check) -> None:
    """Raise ValueError unless `value` passes `check`; `name` is what the caller called it."""
    wanted = check(value)
    if wanted:
        raise ValueError(f"{name}: got {value!r}; wanted {wanted}")


def whole(low: int, high: int = LARGEST) -> Check:
    """A whole number in low ... high."""

    def wanted(value: Any) -> str | None:
        if is_whole(value) and low <= value <= high:
            return None
        too_large = is_whole(value) and value > high
        limit = f"{low} or more" if high == LARGEST and not too_large else f"{low} to {high}"
        return f"a whole number, {limit}"

    return wanted


def real(
    *, above: float = -math.inf, at_least: float = -math.inf, below: float = math.inf
) -> Check:
    """A finite number > `above`, >= `at_least` and < `below`."""
    limits = [
        *([f"above {above:g}"] if above > -math.inf else []),
        *([f"{at_least:g} or more"] if at_least > -math.inf else []),
        *([f"below {below:g}"] if below < math.inf else []),
    ]

    def wanted(value: Any) -> str | None:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and math.isfinite(value) and above < value < below and value >= at_least:
            return None
        return ", ".join(["a finite number", *limits])

    return wanted


def text(value: Any) -> str | None:
    """Text that is not empty."""
    return None if isinstance(value, str) and value.strip() else "a name that is not empty"


def boolean(value: Any) -> str | None:
    """True or False, not something that counts as one of them."""
    return None if isinstance(value, bool) else "True or False"


def lr_scale(value: Any) -> str | None:
    """A rule's name, or a factor."""
    if value in LR_SCALES or real(above=0.0)(value) is None:
        return None
    return f"one of {', '.join(LR_SCALES)}, or a factor above 0"
