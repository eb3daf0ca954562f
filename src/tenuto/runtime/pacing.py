"""Chooses the steps that are evaluated while a generation runs, so that it comes as near to the full run as was asked.

A refresh corrects the steps before it (tenuto.runtime.stepping). How much this changes the sample says how far the
predictions had strayed. The sum of these squared changes, in shares of the picture's variance, tells how far the result
will be from the full run. So the distance to the next refresh is chosen like the step of an ODE solver: what is to be
expected there must be no more than its share of what is left to be spent.

`python -m benchmarks.quality` shows how well this is kept.
"""

import math
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.quality import PEAK
from tenuto.runtime.levels import Levels
from tenuto.scheduling.placement import progress_of

SCALE = 2.7  # the squared error of the result, over the sum of squared changes; nine results of ten have less
FIRST = 1 / 24  # of the way: the distance to the second refresh
FARTHEST = 1 / 9
GROWTH = 2.0  # the most by which a distance grows from one refresh to the next
WITHIN = 3.0  # dB: what is nearer than that to the quality asked counts as reached
HALF = 0.5  # of its share is left to each distance, however much was spent before: what is done cannot be undone
ORDER = 5  # the squared error of a prediction is taken to grow with this power of the distance


def check_quality(quality: float) -> None:
    if isinstance(quality, bool) or not isinstance(quality, int | float) or not 10 <= quality <= 80:
        raise UsageError(f"A quality is a number of decibels from 10 to 80, not {quality!r}.")


def decibels(strayed: float) -> float:
    """The distance to the full run that a result has at least, mostly, if its samples strayed so far (in variances)."""
    if strayed <= 0:
        return math.inf
    return -math.inf if strayed == math.inf else 10 * math.log10(PEAK**2 / (SCALE * strayed))


def seen_later(signal: float, noise: float) -> float:
    """The share of a squared change of the sample that counts. While there is little signal, most of it is undone.

    It does not depend on how a scheduler scales its samples.
    """
    return float(signal / (signal**2 + noise**2) ** 1.5)


class Pace:
    """The choice of one generation. The worst sample of a batch decides."""

    def __init__(self, quality: float, levels: Levels, most: int | None = None, group: Any = None) -> None:
        """levels  of the steps
        most    evaluations; by default all steps
        group   processes of torch.distributed that draw the same samples and must choose the same steps
        """
        check_quality(quality)
        self.quality = quality
        self.capped = False  # whether a distance was made longer because evaluations are limited
        self._levels = levels.mixed
        self._progress: list[float] = progress_of(len(levels), levels.log_snr).tolist()
        self._most = len(levels) if most is None else most
        self._group = group
        self._allowed = PEAK**2 / SCALE * 10 ** (-quality / 10)  # the inverse of `decibels`
        self._refreshes: list[int] = []
        self._error = 0.0  # of the last predictions, squared, in variances
        self._spent = 0.0

    def missed(self, estimated: float | None) -> bool:
        """Whether more evaluations were needed: there was a limit, or the first predictions strayed too far."""
        if estimated is None:
            return self.capped
        return estimated < self.quality - (0 if self.capped else WITHIN)

    def decide(
        self,
        step: int,
        computed: list[bool],
        change: Tensor | None,
        strayed: Tensor | None,
        variance: Tensor | None,
    ) -> None:
        """Mark in `computed` which step evaluates next.

        change    [sample]: by how much this refresh changed the sample, squared; None if nothing was held before it
        strayed   [sample]: the sum of all changes, as far as they count
        variance  [sample]: of the picture
        """
        last = len(computed) - 1
        again = self._refreshes[-1:] == [step]  # a second scheduler steps in the same loop: the nearer choice counts
        if again:
            self._refreshes.pop()
        if change is not None and strayed is not None and variance is not None:
            changed, self._spent = self._worst(change / variance, strayed / variance)
            self._error = changed / self._reach(self._refreshes[-1], step) ** 2
        following = self._next(step, last)
        if again:
            following = min([following, *(place for place in range(step + 1, last + 1) if computed[place])])
        self._refreshes.append(step)
        computed[step + 1 :] = [place == following for place in range(step + 1, last + 1)]

    def _next(self, step: int, last: int) -> int:
        """The step that is evaluated next."""
        before = self._progress[step] - self._progress[self._refreshes[-1]] if self._refreshes else FIRST / GROWTH
        left, found, farthest = 1 - self._progress[step], step + 1, step + 1
        rest = max(self._allowed - self._spent, HALF * self._allowed * left)
        for place in range(step + 2, last + 1):
            distance = self._progress[place] - self._progress[step]
            if distance > min(FARTHEST, GROWTH * before):
                break
            farthest = place
            error = self._error * max(1.0, distance / before) ** ORDER
            expected = error * self._reach(step, place) ** 2 * seen_later(*self._levels[place])
            if expected <= rest * distance / left:
                found = place
        evaluations = self._most - len(self._refreshes) - 1
        if evaluations >= last - step:
            return found
        if evaluations < 1:
            return last + 1
        if found == farthest and self._lasts(step, found, evaluations - 1):
            return found
        needed = self._progress[step] + left / evaluations  # otherwise the evaluations do not last to the end
        later = next(place for place in range(step + 1, last + 1) if self._progress[place] >= needed - 1e-9)
        self.capped |= later > found
        return max(found, later)

    def _lasts(self, step: int, following: int, evaluations: int) -> bool:
        """Whether so many evaluations after the following one last to the end, if distances grow quickly."""
        at, distance = self._progress[following], self._progress[following] - self._progress[step]
        for _ in range(evaluations):
            distance = min(FARTHEST, GROWTH * distance)
            at += distance
        return at >= 1 - 1e-9

    def _reach(self, before: int, step: int) -> float:
        """How strongly an error of the clean estimate between two steps changes the sample at the second."""
        (a, s), (b, t) = self._levels[step], self._levels[before]
        return abs(a - b * s / t) or 1.0

    def _worst(self, change: Tensor, strayed: Tensor) -> tuple[float, float]:
        """Of all samples. The host waits for the device here, once for each refresh."""
        numbers = torch.stack([change.max(), strayed.max()])
        if self._group is not None:
            torch.distributed.all_reduce(numbers, op=torch.distributed.ReduceOp.MAX, group=self._group)
        changed, spent = numbers.tolist()
        return changed, spent


class Account:
    """How far the samples of one generation strayed from the full run, as the corrections show it."""

    def __init__(self, pace: Pace | None = None) -> None:
        """pace  chooses the next refresh by this account"""
        self._pace = pace
        self._strayed: Tensor | None = None  # [sample]: the squared changes by corrections so far
        self._variance: Tensor | None = None  # [sample]: of the clean estimate

    def note(
        self, step: int, level: tuple[float, float], computed: list[bool], clean: Tensor, difference: Tensor | None
    ) -> None:
        """A refresh at a step. If there is a pace, mark in `computed` which step evaluates next.

        level       signal and noise of the step
        clean       the estimate of the clean picture
        difference  by how much the refresh changed the sample; None if nothing was held before it
        """
        change, wide = None, torch.promote_types(clean.dtype, torch.float32)
        if difference is not None:
            change = difference.to(wide).square().flatten(1).mean(1)
            counts = change * seen_later(*level)
            self._strayed = counts if self._strayed is None else self._strayed + counts
        self._variance = clean.to(wide).flatten(1).var(1)
        if self._pace is not None:
            self._pace.decide(step, computed, change, self._strayed, self._variance)

    @property
    def estimated(self) -> float | None:
        """The estimated distance to the full run in dB, of the worst sample; None if it cannot be told."""
        if self._strayed is None or self._variance is None:
            return None
        worst = float((self._strayed / self._variance).max())
        return None if math.isnan(worst) else decibels(worst)

    @property
    def missed(self) -> bool:
        """Whether a quality was asked for that needed more evaluations."""
        return self._pace is not None and self._pace.missed(self.estimated)
