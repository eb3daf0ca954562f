"""Which steps a whole-output cache evaluates: the published rules, adjusted to evaluate exactly N of T steps."""

from collections.abc import Callable
from functools import partial
from math import floor

from tenuto.errors import UsageError

Placement = Callable[[int, int], tuple[int, ...]]  # (T steps, N evaluations) -> the evaluated steps, rising


def evenly(steps: int, evaluations: int, *, first: int = 1, last: int = 0) -> tuple[int, ...]:
    """The first and the last steps, and as many between them as remain, at even distances.

    If N is small, fewer last steps are evaluated, then fewer first ones; one step always remains between them.
    """
    _check(steps, evaluations)
    if evaluations == steps:
        return tuple(range(steps))
    last = max(0, min(last, evaluations - 2))
    first = max(1, min(first, evaluations - last - 1))
    remaining, start, end = evaluations - first - last, first - 1, steps - last
    between = [start + round(i * (end - start) / (remaining + 1)) for i in range(1, remaining + 1)]
    return (*range(first), *between, *range(end, steps))


def periodic(steps: int, evaluations: int, *, warmup: int = 2) -> tuple[int, ...]:
    """The first steps, then every R-th step: the rule of TaylorSeer, HiCache, FoCa and DMD.

    The period is the longest, and the warm-up the shortest from the published one on, that give exactly N.
    """
    _check(steps, evaluations)
    for first in range(max(1, min(warmup, evaluations)), evaluations + 1):
        for period in range(steps, 0, -1):
            if first + (steps - first) // period == evaluations:
                return (*range(first), *range(first - 1 + period, steps, period))
    return tuple(range(evaluations))  # not reached: a warm-up of N with an endless period gives N


def growing(steps: int, evaluations: int, *, warmup: int = 5, window: float = 2.0) -> tuple[int, ...]:
    """The first steps, then one in each window; each window is longer than the one before: Spectrum's rule.

    The windows grow by the least amount that leaves N evaluations, and the warm-up is cut short if none does.
    """
    _check(steps, evaluations)
    for first in range(max(1, min(warmup, evaluations)), 0, -1):
        for hundredths in range(100 * steps):
            found = in_windows(steps, first, window, hundredths / 100)
            if len(found) <= evaluations:
                break
        if len(found) == evaluations:
            return found
    return evenly(steps, evaluations, first=min(warmup, evaluations))


def in_windows(steps: int, warmup: int, window: float, growth: float) -> tuple[int, ...]:
    """Spectrum's rule as published: a step is evaluated when the steps held before it fill the window, less one."""
    found, held = list(range(warmup)), 0
    for step in range(warmup, steps):
        if (held + 1) % floor(window) == 0:
            found.append(step)
            held, window = 0, window + growth
        else:
            held += 1
    return tuple(found)


def named(placement: Placement) -> str:
    """How a setting names its placement."""
    if not isinstance(placement, partial):
        return getattr(placement, "__name__", "own")
    return " ".join([placement.func.__name__, *(f"{key} {value:g}" for key, value in placement.keywords.items())])


def _check(steps: int, evaluations: int) -> None:
    if not 1 <= evaluations <= steps:
        raise UsageError(f"Between 1 and {steps} of {steps} steps can be evaluated, not {evaluations}.")
