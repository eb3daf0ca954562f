"""One sampling under Tenuto: some evaluations are computed, the others are predicted, and predictions are corrected.

The prediction is made where the sampler reads: after guidance, of the clean estimate ("denoised"). At a held
evaluation nothing is evaluated: neither the model, nor a ControlNet, nor what other nodes add to the guidance. If the
sampler evaluates twice at one noise level (Heun), the noise is predicted instead of the clean estimate, and nothing is
corrected, as everywhere in Tenuto.

Correction. At a computed evaluation the values in between can be interpolated, which is more accurate than the
extrapolation that was used. So the sampler is run again from the beginning with the interpolated values, up to this
evaluation, and goes on from there. That costs no evaluation, and serves samplers that remember earlier values.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .mathematics import (
    ORDER,
    Account,
    Pace,
    levels_of,
    places_of,
    polynomial_weights,
    steady_for,
    taken_for_picture,
)

Values = dict[str, Tensor]  # what an evaluation gives: "denoised", and "uncond_denoised" for the samplers that read it


class Again(BaseException):
    """The sampler is to be run again, because what it was given can now be interpolated.

    Not an Exception, so that no other node's error handling takes it for an error.
    """


@dataclass
class Known:
    """A computed evaluation."""

    computed: Values  # as the model gave them
    kept: Values  # what is predicted from: they follow the corrected sample
    sample: Tensor | None  # that the model saw; None once the values follow the corrected sample


class Held:
    """The state of one sampling."""

    def __init__(self, sigmas: Sequence[float], flow: bool, plan: frozenset[int], pace: Pace | None = None) -> None:
        """plan  the evaluations to compute
        pace  chooses them on the way instead
        """
        self._computed = [place in plan for place in range(len(sigmas))]
        self.account = Account(pace)
        self.known: dict[int, Known] = {}
        self.seconds = 0.0  # in computed evaluations
        self._mixed = levels_of(sigmas, flow).mixed
        self._places = places_of(sigmas, flow)
        self._steady = steady_for(len(plan))
        self._keeps_noise = len(set(sigmas)) < len(sigmas)  # evaluated twice at one noise level
        self._next = 0

    def begin(self) -> None:
        """The sampler begins, or begins again."""
        self._next = 0

    def next(self, x: Tensor, compute: Callable[[], Values]) -> tuple[Values, bool]:
        """(the values of the next evaluation at the sample x, whether they were just computed)."""
        place, self._next = self._next, self._next + 1
        if place in self.known:
            return self._again(place, x), False
        if not all(self._computed[place : place + 1]):
            values = self._predicted(place)
            return (self._clean(place, x, values) if self._keeps_noise else values), False
        began = time.perf_counter()
        values = compute()
        self.seconds += time.perf_counter() - began
        gap = place > max(self.known, default=place) + 1
        if self._keeps_noise:
            self.known[place] = Known(values, self._noise(place, x, values), None)
            return values, True
        self.known[place] = Known(values, dict(values), x if gap else None)
        if gap:
            raise Again
        self._measure(place, None)
        return values, True

    def _again(self, place: int, x: Tensor) -> Values:
        """The values of an evaluation that the sampler reaches again, now with the corrected sample.

        From the corrected sample the network would have taken a part of the difference for a change of the picture.
        """
        known = self.known[place]
        if known.sample is not None:
            difference, known.sample = x - known.sample, None
            change = difference * taken_for_picture(*self._mixed[place])
            known.kept = {name: value + change for name, value in known.computed.items()}
            self._measure(place, difference)
        return known.kept

    def _measure(self, place: int, difference: Tensor | None) -> None:
        """Note how far the sample had strayed before a computed evaluation, and choose the next one by that."""
        if place < len(self._mixed):
            clean = self.known[place].kept["denoised"]
            self.account.note(place, self._mixed[place], self._computed, clean, difference)

    def _noise(self, place: int, x: Tensor, clean: Values) -> Values:
        """x = a · clean + s · noise"""
        a, s = self._mixed[place]
        return {name: torch.sub(x, value, alpha=a) / s for name, value in clean.items()}

    def _clean(self, place: int, x: Tensor, noise: Values) -> Values:
        a, s = self._mixed[place]
        return {name: torch.sub(x, value, alpha=s) / a for name, value in noise.items()}

    def _predicted(self, place: int) -> Values:
        """By the polynomial through the last computed evaluations, and the next one, if that is known already."""
        before = [known for known in sorted(self.known) if known < place]
        nodes = {self._places[one]: self.known[one].kept for one in before}  # of two at one level, the later counts
        nodes = dict(list(nodes.items())[-(ORDER + 1) :])
        if (after := min((known for known in self.known if known > place), default=None)) is not None:
            nodes.pop(self._places[after], None)
            nodes[self._places[after]] = self.known[after].computed
        weights = polynomial_weights(list(nodes), self._places[place], self._steady)
        return {name: _sum([values[name] for values in nodes.values()], weights) for name in self.known[before[0]].kept}


def _sum(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = torch.zeros_like(values[0])
    for value, weight in zip(values, weights, strict=True):
        if weight:
            total.add_(value, alpha=weight)
    return total


@dataclass(frozen=True)
class Report:
    """What one sampling computed."""

    evaluations: int
    computed: tuple[int, ...]
    seconds: float  # in computed evaluations
    in_full_because: str = ""
    estimated: float | None = None  # dB to the full run
    too_few: bool = False  # whether more evaluations were needed for the quality that was asked for

    def __str__(self) -> str:
        if self.in_full_because:
            return f"Tenuto: everything was computed, because {self.in_full_because}."
        marks = "".join("■" if place in self.computed else "·" for place in range(self.evaluations))
        count = len(self.computed)
        saved = self.seconds / max(1, count) * (self.evaluations - count)
        lines = [f"Tenuto: {count} of {self.evaluations} evaluations computed", marks]
        if self.estimated is not None:
            lacking = "; the quality needs more evaluations" if self.too_few else ""
            lines.append(f"about {self.estimated:.0f} dB to the full run, estimated{lacking}")
        return "\n".join([*lines, f"about {saved:.1f} seconds saved"])


def play(run: Callable[[], Any], held: Held) -> Any:
    """Run the sampler, and again after each evaluation that lets earlier predictions be interpolated."""
    while True:
        held.begin()
        try:
            return run()
        except Again:
            continue
