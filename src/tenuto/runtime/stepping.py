"""Holds the output of a network where the sampler reads it: at the scheduler's step.

At a refresh the scheduler is given the computed output. At the steps in between, the output is predicted. What is
predicted is the network's estimate of the clean picture. The output that belongs to it follows from the sample at hand
(tenuto.runtime.levels). If a scheduler evaluates twice at one noise level (Heun), the estimate of the noise is
predicted instead, and nothing is corrected. If the levels of a scheduler are not known, its outputs are predicted as
they are. `python -m benchmarks.search` and `python -m benchmarks.strong_rivals` are where this was found.

If the scheduler clips the estimate, it is kept as the scheduler uses it, clipped. Where there is hardly any signal, an
estimate is the network's error divided by the signal: unclipped, it would dominate all predictions after it.

Correction. At a refresh the values in between can be interpolated, which is more accurate than extrapolating them. So
the scheduler takes the steps since the last refresh once more, from the state and the sample it had there, and goes on
from the corrected sample: a predictor-corrector method that costs no evaluation. The refreshed value was computed from
a sample that was slightly wrong. From the right sample, the network would have taken a part of the difference for
noise, and the rest for a change of the picture: at high noise almost all for noise, at low noise more for picture.

Begin. If the first samples are all noise, the first evaluation may ask about the noise level of a later step (`ahead`):
up to there the sample changes in size only. Its value then belongs to that step. While there is little signal, values
are hardly extrapolated: under strong guidance the estimate swings there, and what is extrapolated adds to the swing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import ScheduleError
from tenuto.runtime.levels import Levels, Nature
from tenuto.runtime.pacing import Account, Pace
from tenuto.runtime.prediction import polynomial_weights, steady_for, weighted
from tenuto.scheduling.placement import places_of

VARIANCE = 0.25  # of pictures, as EDM (Karras et al. 2022) takes it
AUDIBLE = 3.0  # if the signal is a third of the noise or more, predictions may have their full degree
Step = Callable[[Tensor, Tensor], Any]  # (output, sample) -> what the scheduler's step returns


class Stepping:
    """One generation through one scheduler."""

    def __init__(
        self,
        scheduler: Any,
        nature: Nature,
        computed: list[bool],
        order: int,
        corrected: bool,
        pace: Pace | None = None,
        private: bool = False,
        ahead: int = 0,
    ) -> None:
        """computed   [step]: whether the step evaluates the network
        order      the degree of the polynomials
        corrected  whether refreshes correct the steps before them
        pace       decides at each refresh which step of `computed` is the next
        private    whether nobody but the loop has the samples, so that nobody else can write to them
        ahead      the step about whose noise level the first evaluation asks; its sample is `asked_with`
        """
        self._scheduler = scheduler
        self._computed = computed
        self._pace = pace
        self._private = private
        self._account = Account(pace)
        self._order = order
        self._levels = nature.levels
        self._range = range_of(scheduler)
        numbers = numbers_of(nature.levels, len(self._computed))
        log_snr = None if nature.levels is None else nature.levels.log_snr
        self._places: list[float] = places_of(len(self._computed), log_snr).tolist()
        self._ahead = ahead if nature.levels is not None else 0
        self._places[: self._ahead] = [self._places[self._ahead]] * self._ahead  # they share the place of its value
        self._steady = steady_for(sum(self._computed))
        self._keeps_noise = numbers[-1] < 0.75 * (len(self._computed) - 1)  # evaluated twice at many noise levels
        self._asked_to_correct = corrected
        self.uncorrected_because = ""
        if corrected and nature.levels is None:
            self.uncorrected_because = nature.why_unknown
        elif corrected and nature.adds_noise:
            self.uncorrected_because = f"{type(scheduler).__name__} adds random noise"
        elif corrected and self._keeps_noise:
            self.uncorrected_because = f"{type(scheduler).__name__} evaluates twice at one noise level"
        self.most_bytes = 0  # kept at once so far
        self.forget()

    def forget(self) -> None:
        """Free what is kept."""
        self._kept: list[tuple[int, Tensor]] = []  # (step, value) of the last refreshes
        self._since: list[tuple[int, Step]] = []  # steps taken with predicted outputs since the last refresh
        self._state: dict[str, Any] = {}  # of the scheduler, after the last refresh's step
        self._after: Tensor | None = None  # the sample after the last refresh's step
        self._returned: tuple[Tensor, int | None] | None = None  # by the last step, and its writes
        self._touched = False  # whether the loop changed a sample since the last refresh
        self._dtype = torch.float32  # of outputs

    @property
    def corrects(self) -> bool:
        return self._asked_to_correct and not self.uncorrected_because

    @property
    def estimated(self) -> float | None:
        """The estimated distance to the full run in dB, of the worst sample; None if it cannot be told."""
        return self._account.estimated

    @property
    def knows(self) -> bool:
        """Whether there is anything to predict from."""
        return bool(self._kept)

    def refresh(self, step: int, take: Step, output: Tensor, sample: Tensor) -> Any:
        """A step with a computed output."""
        if self._pace is None and all(self._computed[step:]) and not self._since:
            return take(output, sample)  # nothing will be held again
        if self._levels is not None and output.shape != sample.shape:
            self._levels = None
            self.uncorrected_because = f"the output is {list(output.shape)} and the sample {list(sample.shape)}"
        self._dtype = output.dtype
        asked = step or self._ahead
        value, difference = self._value(asked, output, self.asked_with(step, sample)), None
        if asked != step:
            output = self._output(step, value, sample)
        if self._since and self.corrects and self._levels is not None:
            self._touched |= not self._came_back(sample)
            before, sample = sample, self._corrected(step, value, sample)
            difference = (sample - before).to(value.dtype)
            value = torch.add(value, difference, alpha=taken_for_picture(*self._levels.mixed[step]))
            output = self._output(step, value, sample)
        if self.corrects and self._levels is not None:
            self._account.note(step, self._levels.mixed[step], self._computed, value, difference)
        self._since, self._touched = [], False
        others = [one for one in self._kept if self._places[one[0]] != self._places[step]]
        self._kept = [*others, (asked, value)][-(self._order + 1) :]
        result = take(output, sample)
        if self.corrects and self._computed[step + 1 : step + 2] == [False]:
            self._state, self._after = snapshot(self._scheduler), sample_in(result).clone()
        extra = 0 if self._after is None else self._after.nbytes
        self.most_bytes = max(self.most_bytes, extra + sum(kept.nbytes for _, kept in self._kept))
        self._note(result)
        return result

    def hold(self, step: int, take: Step, sample: Tensor) -> Any:
        """A step with a predicted output."""
        self._touched |= not self._came_back(sample)
        self._since.append((step, take))
        result = take(self.predicted(step, sample), sample)
        self._note(result)
        return result

    def predicted(self, step: int, sample: Tensor) -> Tensor:
        """The predicted output of a step."""
        return self._output(step, self._polynomial(self._kept, step, self._steady_at(step)), sample)

    def asked_with(self, step: int, sample: Tensor) -> Tensor:
        """The sample with which the network is asked at a step: at the first, as large as at the level asked about."""
        if step or not self._ahead or self._levels is None:
            return sample
        return sample * (self._levels.mixed[self._ahead][1] / self._levels.mixed[0][1])

    def _steady_at(self, step: int) -> float:
        """The largest Σ|w| of a prediction: if the run begins in noise alone, it grows with the signal."""
        if not self._ahead or self._levels is None:
            return self._steady
        signal, noise = self._levels.mixed[step]
        return 1 + (self._steady - 1) * min(1.0, AUDIBLE * signal / noise)

    def _corrected(self, step: int, value: Tensor, sample: Tensor) -> Tensor:
        """The sample as it would be if the steps since the last refresh had known the value of this one.

        If the loop itself changed a sample in between (inpainting, a callback), only the difference is applied.
        """
        assert self._after is not None
        wrong = self._again(self._kept) if self._touched else None
        right = self._again([*self._kept, (step, value)])
        return right if wrong is None else sample + (right - wrong)

    def _again(self, known: Sequence[tuple[int, Tensor]]) -> Tensor:
        """The steps since the last refresh, taken once more with a polynomial through these values."""
        restore(self._scheduler, self._state)
        assert self._after is not None
        sample = self._after
        for step, take in self._since:
            sample = sample_in(take(self._output(step, self._polynomial(known, step, self._steady), sample), sample))
        return sample

    def _polynomial(self, known: Sequence[tuple[int, Tensor]], step: int, steady: float) -> Tensor:
        """The value at a step, of the polynomial through known ones. Of two at one place, the later counts."""
        at = {self._places[node]: value for node, value in known}
        return weighted(list(at.values()), polynomial_weights(list(at), self._places[step], steady))

    def _value(self, step: int, output: Tensor, sample: Tensor) -> Tensor:
        """What is kept of an output: the clean estimate or the noise, in float32 at least."""
        wide = torch.promote_types(output.dtype, torch.float32)
        if self._levels is None:
            return output.to(wide, copy=True)
        p, q = self._parts(step)
        value = torch.add(p * sample.to(wide), output.to(wide), alpha=q)
        return value if self._range is None or self._keeps_noise else value.clamp_(-self._range, self._range)

    def _output(self, step: int, value: Tensor, sample: Tensor) -> Tensor:
        """The output that belongs to a kept value and a sample."""
        if self._levels is None:
            return value.to(self._dtype)
        p, q = self._parts(step)
        return torch.add(value / q, sample.to(value.dtype), alpha=-p / q).to(self._dtype)

    def _parts(self, step: int) -> tuple[float, float]:
        """(p, q): what is kept is p · sample + q · output."""
        assert self._levels is not None
        (a, s), (p, q) = self._levels.mixed[step], self._levels.estimated[step]
        return ((1 - a * p) / s, -a * q / s) if self._keeps_noise else (p, q)

    def _note(self, result: Any) -> None:
        sample = sample_in(result)
        self._returned = sample, writes(sample)

    def _came_back(self, sample: Tensor) -> bool:
        """Whether the sample is what the last step returned, and nobody wrote to it."""
        if self._returned is None or sample is not self._returned[0]:
            return False
        written = writes(sample)
        return self._private if written is None else written == self._returned[1]


def taken_for_picture(signal: float, noise: float) -> float:
    """By how much the clean estimate follows a sample that changes: exact for pictures of this variance."""
    return signal * VARIANCE / (signal**2 * VARIANCE + noise**2)


def range_of(scheduler: Any) -> float | None:
    """The largest magnitude to which a scheduler clips the estimate of the clean picture; None if it does not clip."""
    config = getattr(scheduler, "config", {})
    if config.get("clip_sample"):
        return float(config.get("clip_sample_range", 1.0))
    largest = config.get("sample_max_value", 1.0)
    return 1.0 if config.get("thresholding") and largest == 1 else None  # up to one, thresholding is clipping


def numbers_of(levels: Levels | None, steps: int) -> list[int]:
    """The numbers of the steps, from 0 on. Steps at one noise level (Heun's) share one number."""
    mixed = None if levels is None else levels.mixed
    numbers = [0]
    for step in range(1, steps):
        numbers.append(numbers[-1] + (mixed is None or mixed[step] != mixed[step - 1]))
    return numbers


def sample_in(result: Any) -> Tensor:
    """The sample in what a scheduler's step returns."""
    found = result[0] if isinstance(result, tuple) else getattr(result, "prev_sample", None)
    if not isinstance(found, Tensor):
        raise ScheduleError(f"The scheduler's step returns a {type(result).__name__} without a sample (prev_sample).")
    return found


def writes(sample: Tensor) -> int | None:
    """How often a tensor was written to in place; None for tensors of torch's inference mode, which do not count."""
    return None if sample.is_inference() else sample._version


def snapshot(scheduler: Any) -> dict[str, Any]:
    """The state of a scheduler: what its steps change is copied."""
    return {name: _copied(value) for name, value in vars(scheduler).items()}


def restore(scheduler: Any, state: dict[str, Any]) -> None:
    """Give a scheduler the state of a snapshot again."""
    for name in [name for name in vars(scheduler) if name not in state]:
        delattr(scheduler, name)
    vars(scheduler).update({name: _copied(value) for name, value in state.items()})


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone() if value.ndim > 1 else value  # vectors hold noise levels, which no step changes
    return [_copied(one) for one in value] if type(value) is list else value
