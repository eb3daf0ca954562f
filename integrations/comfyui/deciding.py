"""How many evaluations to compute, and which."""

from collections.abc import Sequence
from dataclasses import dataclass

from .mathematics import placed

FLOOR = 4  # fewer computed evaluations say too little of a trajectory


@dataclass(frozen=True)
class Wish:
    """What the node was asked for: a share of the evaluations, or their number."""

    budget: float = 0.25
    evaluations: int | None = None

    def count(self, evaluations: int) -> int:
        asked = self.evaluations if self.evaluations is not None else round(self.budget * evaluations)
        return min(evaluations, max(FLOOR, asked))


def plan_for(levels: Sequence[float], wish: Wish) -> tuple[frozenset[int], str]:
    """(the evaluations to compute, why all of them if all of them).

    Several evaluations may have one noise level, or go back to an earlier one (Heun's and other two-stage methods).
    Those that reach a new level are computed first; the others only if more are asked for.
    """
    count = wish.count(len(levels))
    if count >= len(levels):
        few = len(levels) <= FLOOR and wish.budget < 1
        return frozenset(range(len(levels))), "so few steps differ too much from one another" if few else ""
    fresh = [place for place, level in enumerate(levels) if place == 0 or level > max(levels[:place])]
    chosen = [fresh[place] for place in placed([levels[place] for place in fresh], min(count, len(fresh)))]
    rest = [place for place in range(len(levels)) if place not in set(fresh)]
    more = count - len(chosen)
    if more > 0 and rest:
        chosen += [rest[place * len(rest) // more] for place in range(min(more, len(rest)))]
    return frozenset(chosen), ""
