"""How many evaluations to compute, and which."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .mathematics import check_budget, check_quality, evaluations_for, levels_of, places_of, spread


@dataclass(frozen=True)
class Wish:
    """What the node was asked for: a share of the evaluations, their number, or a quality."""

    budget: float = 0.25
    evaluations: int | None = None  # with a quality: the most
    quality: float | None = None  # dB to the full run

    def __post_init__(self) -> None:
        check_budget(self.budget)
        if self.quality is not None:
            check_quality(self.quality)

    def count(self, evaluations: int) -> int:
        """How many of so many evaluations to compute."""
        asked = evaluations_for(evaluations, self.budget) if self.evaluations is None else self.evaluations
        return min(evaluations, max(1, asked))


@dataclass(frozen=True)
class Plan:
    computed: frozenset[int]  # the evaluations to compute
    in_full_because: str = ""  # why all of them, if all of them


def plan_for(sigmas: Sequence[float], flow: bool, wish: Wish) -> Plan:
    """Which evaluations to compute, of those at these noise levels. With a quality: all, until its pace chooses.

    Several evaluations may have one noise level, or go back to an earlier one (Heun's and other two-stage methods).
    Those that reach a new level are computed first; the others only if more are asked for.
    """
    count, every = wish.count(len(sigmas)), frozenset(range(len(sigmas)))
    if not all(map(math.isfinite, sigmas)):
        return Plan(every, "a noise level is not a finite number")
    if wish.quality is not None:
        again = any(later >= sigma for sigma, later in pairwise(sigmas))
        return Plan(every, "this sampler comes back to a noise level, so no quality can be measured" if again else "")
    if count >= len(sigmas):
        few = wish.budget < 1 and wish.evaluations is None
        return Plan(every, "so few steps differ too much from one another" if few else "it was asked for")
    levels, places = levels_of(sigmas, flow), places_of(sigmas, flow)
    if len(set(sigmas)) < len(sigmas) and any(not s or (place and not a) for place, (a, s) in enumerate(levels.mixed)):
        return Plan(every, "this sampler comes back to a noise level, and evaluates where there is only noise or none")
    fresh = [place for place in range(len(sigmas)) if place == 0 or places[place] > max(places[:place])]
    chosen = spread(levels, fresh, min(count, len(fresh)))
    rest = sorted(every - set(fresh))
    more = min(count - len(chosen), len(rest))
    chosen += [rest[number * len(rest) // more] for number in range(more)]
    return Plan(frozenset(chosen))
