"""One sampling under Tenuto: some evaluations are computed, the others are predicted, and predictions are corrected.

The prediction is made where the sampler reads: after guidance, of the clean estimate x̂₀ ("denoised"). At a held
evaluation nothing is evaluated: neither the model, nor a ControlNet, nor what other nodes add to the guidance.

Correction. At a computed evaluation the values in between can be interpolated, which is more accurate than the
extrapolation that was used. So the sampler is run again from the beginning, with the interpolated values, up to this
evaluation, and goes on from there. That costs no evaluation, and serves samplers that remember earlier values.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .mathematics import weights_at
from .rehearsal import Rehearsal

Values = dict[str, Tensor]  # what an evaluation gives: "denoised", and "uncond_denoised" for the samplers that read it


class Again(BaseException):
    """The sampler is to be run again, because what it was given can now be interpolated.

    Not an Exception, so that no other node's error handling takes it for an error.
    """


@dataclass
class Held:
    """The state of one sampling."""

    levels: list[float]  # of each evaluation
    plan: frozenset[int]  # the evaluations that are computed
    known: dict[int, Values] = field(default_factory=dict)  # computed so far
    seconds: float = 0.0  # in computed evaluations
    place: int = 0  # of the next evaluation

    def begin(self) -> None:
        """The sampler begins, or begins again."""
        self.place = 0

    def next(self, compute: Callable[[], Values]) -> tuple[Values, bool]:
        """(the values of the next evaluation, whether they were just computed)."""
        place, self.place = self.place, self.place + 1
        if place in self.known:
            return self.known[place], False
        if place not in self.plan and place < len(self.levels):
            return self._predicted(place), False
        began = time.perf_counter()
        values = compute()
        self.seconds += time.perf_counter() - began
        last = max(self.known, default=-1)
        self.known[place] = values
        if last >= 0 and place > last + 1:
            raise Again
        return values, True

    def _predicted(self, place: int) -> Values:
        nodes = self._nodes()
        chosen, weights = weights_at([self.levels[node] for node in nodes], self.levels[place])
        points = [(self.known[nodes[at]], weight) for at, weight in zip(chosen, weights, strict=True) if weight]
        first, rest = points[0], points[1:]
        made = {}
        for name, value in first[0].items():
            total = value * first[1]
            for values, weight in rest:
                total = total.add(values[name], alpha=weight)
            made[name] = total
        return made

    def _nodes(self) -> list[int]:
        """The known evaluations, one for each noise level: of two, the later one, which saw the better sample."""
        latest = {self.levels[place]: place for place in sorted(self.known)}
        return sorted(latest.values())


@dataclass(frozen=True)
class Report:
    """What one sampling computed."""

    evaluations: int
    computed: tuple[int, ...]
    seconds: float  # in computed evaluations
    in_full_because: str = ""

    def __str__(self) -> str:
        if self.in_full_because:
            return f"Tenuto: all {self.evaluations} evaluations computed, because {self.in_full_because}."
        marks = "".join("■" if place in self.computed else "·" for place in range(self.evaluations))
        count = len(self.computed)
        saved = self.seconds / max(1, count) * (self.evaluations - count)
        return f"Tenuto: {count} of {self.evaluations} evaluations computed, about {saved:.1f} s saved\n{marks}"


def report_of(rehearsal: Rehearsal, held: Held | None) -> Report:
    if held is None:
        every = tuple(range(len(rehearsal.sigmas)))
        return Report(len(rehearsal.sigmas), every, 0.0, rehearsal.in_full_because)
    return Report(len(held.levels), tuple(sorted(held.known)), held.seconds)


def play(run: Callable[[], Any], held: Held) -> Any:
    """Run the sampler, and again after each evaluation that lets earlier predictions be interpolated."""
    while True:
        held.begin()
        try:
            return run()
        except Again:
            continue
