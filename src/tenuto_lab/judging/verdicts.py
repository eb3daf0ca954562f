"""From a measurement to a verdict: a claim holds, does not hold, or this measurement cannot tell.

    rows = decided([better(change), at_most(increase, 0.08)])      # Holm's correction over all of them
    rows[0].verdict                                                # "yes", "no" or "cannot tell"

Every claim has a boundary: "better than" has zero, "at most 8 %" has 8 %. The evidence is how many standard errors the
measurement lies from that boundary, and on which side. If no sample differs, there is no spread: the metric is
saturated for this pair and decides nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tenuto_lab.judging.statistics import SPREAD, SURE, Interval

Verdict = Literal["yes", "no", "cannot tell"]
VERDICTS: tuple[Verdict, ...] = ("yes", "no", "cannot tell")
TELLING = 0.6, 0.95  # share of right answers of full inference; outside, a task is too hard or too easy to tell


@dataclass(frozen=True)
class Evidence:
    """What one measurement says of one claim, before the correction for the number of comparisons."""

    p: float  # two-sided, that the truth lies on the claim's boundary
    favours: bool  # whether the measurement lies on the claim's side


@dataclass(frozen=True)
class Decision:
    verdict: Verdict
    p: float
    corrected: float  # Holm's p


def better(change: Interval, p: float | None = None) -> Evidence:
    """The claim that a change is above zero. p: of a paired test; without it, from the interval."""
    return Evidence(_p(change, change[0]) if p is None or change[1] == change[2] else p, change[0] > 0)


def at_most(measured: Interval, claimed: float) -> Evidence:
    """The claim that a quantity is at most `claimed`."""
    return Evidence(_p(measured, claimed - measured[0]), measured[0] <= claimed)


def at_least(measured: Interval, claimed: float) -> Evidence:
    """The claim that a quantity is at least `claimed`."""
    return Evidence(_p(measured, measured[0] - claimed), measured[0] >= claimed)


def alike(change: Interval, margin: float) -> Evidence:
    """The claim that a change is smaller than a margin, up or down."""
    return Evidence(_p(change, margin - abs(change[0])), abs(change[0]) <= margin)


def decided(evidence: Sequence[Evidence]) -> list[Decision]:
    """A verdict for each piece of evidence. All pieces are one family: Holm's correction covers them together."""
    return [
        Decision(("yes" if one.favours else "no") if corrected < 1 - SURE else "cannot tell", one.p, corrected)
        for one, corrected in zip(evidence, holm([one.p for one in evidence]), strict=True)
    ]


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the smallest of m p-values counts m times, the next m − 1 times, and so on."""
    corrected, largest = [0.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[i]))
        corrected[i] = largest
    return corrected


def _p(measured: Interval, distance: float) -> float:
    """The two-sided p of a distance, from the standard error that the interval shows; 1 without any spread."""
    error = (measured[2] - measured[1]) / (2 * SPREAD)
    return math.erfc(abs(distance) / error / math.sqrt(2)) if error > 0 else 1.0
