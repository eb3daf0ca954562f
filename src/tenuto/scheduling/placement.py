"""Where to evaluate: which steps are computed, for a given number of evaluations.

The noise falls unevenly along the steps of most schedulers, and the network's estimate changes with the noise. So the
evaluations are spread evenly over a measure of progress. The measure depends on the noise level of a step alone, not on
how a scheduler spaces its steps. One half of it is the noise level (the logarithm of the signal-to-noise ratio). The
other half is the time at which a process that adds noise ever faster reaches this level, as the processes do that
networks are trained with.

If a run begins in noise alone, its levels reach far into noise in which little happens. Then the measure is a mixture
of the level, the angle between signal and noise, and the time of flow matching: the last two hardly change there.
`python -m benchmarks.search` with `--placements`, `--signal` and `--noise` is where this was found.

Predictions are polynomials (tenuto.runtime.prediction). Their variable (`places_of`) is a function of the noise level,
too: the measure itself, or the time of the process that adds noise if the run begins in noise alone.

The last step is computed as well, because it decides over the finest detail, unless there are few evaluations and many
more steps: then the last evaluation is worth more a little earlier. Many are four for each evaluation, or more than two
if the run begins in noise alone.

Many schedulers begin where there is no signal yet. From there to the first level with a trace of signal the sample does
not change, except in size, so an evaluation at the first step is almost lost. If the sampler can ask the network about
another noise level than its own (`ahead`), the first evaluation asks about a later level (`asked_ahead`). With many
evaluations it does not, because then the little that the sample does change is a larger share of what is missed.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FEW = 9  # evaluations; fewer than these are few
MANY = 12  # evaluations; with fewer, the first may ask ahead
LEVEL, TIME = 0.5, 0.5  # shares in the measure
FLOW_FROM_NOISE, LEVEL_FROM_NOISE, ANGLE_FROM_NOISE = 0.5, 0.3, 0.2  # instead, if a run begins in noise alone
SHIFT = 5.0  # of the flow: halfway, the noise is so many times as strong as the signal
FLOOR = -5.0  # log-SNR; samples with less signal than this are alike
BEFORE_END, BEFORE_END_FROM_NOISE = 0.4, 0.8  # of an interval: how much earlier few evaluations of many steps end
EASING = 0.95  # times the share of the steps that are left out: as much at most, if a run begins in noise alone
SILENT = -3.5  # log-SNR; a sample up to here is all noise: its signal is a thirtieth


def placed(
    steps: int, evaluations: int, log_snr: Sequence[float] | None = None, ahead: bool = False
) -> NDArray[np.bool_]:
    """[step]: whether the step is computed. Exactly `evaluations` steps are, the first among them.

    log_snr  of each step; None if it is unknown. Then evaluations are spread evenly over the steps
    ahead    whether the first evaluation asks about a later level: then the others come later, too
    """
    if evaluations >= steps:
        return np.ones(steps, dtype=bool)
    progress = progress_of(steps, log_snr)
    first = min(1 / evaluations, progress[_silent(log_snr)]) if ahead else 0.0
    aims = np.linspace(first, 1 - _before_end(steps, evaluations, log_snr) / evaluations, evaluations)
    aims[0] = 0.0
    order, last = [], -1
    for number, aim in enumerate(aims):
        nearest = int(np.abs(progress - aim).argmin()) if aim < 1 else steps - 1  # of the last level, the last step
        last = min(max(nearest, last + 1), steps - evaluations + number)  # two aims may fall on one step
        order.append(last)
    computed = np.zeros(steps, dtype=bool)
    computed[order] = True
    return computed


def _before_end(steps: int, evaluations: int, log_snr: Sequence[float] | None) -> float:
    """How much earlier than the last step the last evaluation is, in intervals between evaluations."""
    if evaluations >= FEW:
        return 0.0
    signal, left_out = begins_with_signal(log_snr), 1 - evaluations / steps
    if _rising(log_snr) is not None and not signal:
        return min(BEFORE_END_FROM_NOISE, EASING * left_out) if left_out > 0.5 else 0.0
    before_end = BEFORE_END if signal else BEFORE_END_FROM_NOISE
    return before_end if steps >= 4 * evaluations else 0.0


def asked_ahead(computed: Sequence[bool], log_snr: Sequence[float]) -> int:
    """The step about whose noise level the evaluation at the first step asks: at most halfway to the next evaluation.

    0 if the first step has signal already, or if the next evaluation is near.
    """
    following = [step for step, one in enumerate(computed) if one and step][:1]
    if not following:
        return 0
    progress = progress_of(len(computed), log_snr)
    halfway = int(np.flatnonzero(progress <= progress[following[0]] / 2)[-1])
    return min(halfway, following[0] - 1, _silent(log_snr))  # steps at one noise level are no way apart


def begins_with_signal(log_snr: Sequence[float] | None) -> bool:
    """Whether the first sample has signal in it; not if the levels are unknown."""
    return log_snr is not None and log_snr[0] > SILENT


def _silent(log_snr: Sequence[float] | None) -> int:
    """The last of the first steps whose samples are all noise; 0 if there is none."""
    if log_snr is None:
        return 0
    return max(0, next((step for step, level in enumerate(log_snr) if level > SILENT), len(log_snr)) - 1)


def progress_of(steps: int, log_snr: Sequence[float] | None) -> NDArray[np.float64]:
    """How far along each step is, from 0 to 1. If the noise levels are unknown, the steps count alike."""
    level = _rising(log_snr)
    if level is None:
        return np.arange(steps) / max(1, steps - 1)
    if begins_with_signal(log_snr):
        return LEVEL * _normed(level) + TIME * _normed(_time(level))
    flow = SHIFT / (SHIFT + np.exp(-level))
    angle = -np.arctan(np.exp(-level))  # tan = noise / signal
    return FLOW_FROM_NOISE * _normed(flow) + LEVEL_FROM_NOISE * _normed(level) + ANGLE_FROM_NOISE * _normed(angle)


def places_of(steps: int, log_snr: Sequence[float] | None) -> NDArray[np.float64]:
    """The variable of the polynomials at each step, from 0 to 1. Steps at one noise level share a place."""
    level = _rising(log_snr)
    if level is None or begins_with_signal(log_snr):
        return progress_of(steps, log_snr)
    return _normed(_time(level))


def _rising(log_snr: Sequence[float] | None) -> NDArray[np.float64] | None:
    """The levels, as far as they say anything; None if they do not rise or are unknown."""
    if log_snr is None or not log_snr[-1] > log_snr[0]:
        return None
    return np.maximum.accumulate(np.maximum(np.asarray(log_snr, dtype=np.float64), FLOOR))


def _time(level: NDArray[np.float64]) -> NDArray[np.float64]:
    """−√log(1 + σ²): the time, counted backwards, at which noise whose rate β grows linearly reaches the level."""
    time: NDArray[np.float64] = -np.sqrt(np.logaddexp(0.0, -2 * level))
    return time


def _normed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """From 0 to 1; evenly if there is hardly a difference between the first and the last."""
    span = values[-1] - values[0]
    return (values - values[0]) / span if span > 1e-9 else np.linspace(0, 1, len(values))
