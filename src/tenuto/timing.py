"""Fair times on a machine that may have other work: runs take turns, and medians are compared."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

ROUNDS = 3  # from which on a median leaves a disturbed round out
LARGEST = 16  # pictures in a part

Made = TypeVar("Made")


@dataclass(frozen=True)
class Timed(Generic[Made]):
    """What one run made in each round, and the seconds that it took."""

    made: list[Made]
    seconds: list[float]

    @property
    def total(self) -> float:
        """The seconds of all rounds, if each takes as long as the median one."""
        return len(self.seconds) * statistics.median(self.seconds)


def in_turns(
    runs: Sequence[Callable[[int], Made]], rounds: int, told: Callable[[int, int, float], object] = lambda *_: None
) -> list[Timed[Made]]:
    """Each run once a round, given the number of the round; in every second round in the opposite order.

    Warm up before. So other work on the machine slows all runs alike, and a moment of it slows no median.
    told  called after each run with the round, the run and its seconds
    """
    found: list[Timed[Made]] = [Timed([], []) for _ in runs]
    for turn in range(rounds):
        order = list(enumerate(runs))
        for i, run in order if turn % 2 == 0 else reversed(order):
            began = time.perf_counter()
            made = run(turn)
            seconds = time.perf_counter() - began
            found[i].made.append(made)
            found[i].seconds.append(seconds)
            told(turn, i, seconds)
    return found


def equal_parts(count: int) -> list[slice]:
    """So many pictures in parts of one size, for a round each: three rounds or more, if there are so many pictures."""
    size = next(size for size in range(min(LARGEST, max(1, count // ROUNDS)), 0, -1) if count % size == 0)
    return [slice(first, first + size) for first in range(0, count, size)]


def doubt(speedup: float, work: float) -> str | None:
    """What to say of a speed-up that the work saved cannot explain; None if there is no doubt, or nothing is saved.

    work  the share of the work that is computed
    """
    most = 1 / work
    if speedup <= most or work == 1:
        return None
    return (
        f"With {work:.0%} of the work computed, at most {most:.2f}× is possible, and {speedup:.2f}× were measured: "
        "this machine was busy with other work."
    )
