"""Where to evaluate: which steps are computed, for a given number of evaluations.

The noise falls unevenly along the steps of most schedulers, and the network's estimate changes with the noise: most
where picture and noise are about equally strong. So the evaluations are spread evenly over a mixture of three measures
of progress: the step's number, its noise level (the logarithm of the signal-to-noise ratio), and the angle between
signal and noise. `python -m benchmarks.search --placements` is where the mixture was found.

The last step is computed as well, because it decides over the finest detail, unless there are few evaluations for many
steps: then the last evaluation is worth more a little earlier.

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
NUMBER, LEVEL, ANGLE = 0.5, 0.3, 0.2  # shares in the mixture
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
    early = evaluations < FEW and steps >= 4 * evaluations
    first = min(1 / evaluations, progress[_silent(log_snr)]) if ahead else 0.0
    aims = np.linspace(first, 1 - 0.8 / evaluations if early else 1, evaluations)
    aims[0] = 0.0
    order, last = [], -1
    for number, aim in enumerate(aims):
        nearest = int(np.abs(progress - aim).argmin())
        last = min(max(nearest, last + 1), steps - evaluations + number)  # two aims may fall on one step
        order.append(last)
    computed = np.zeros(steps, dtype=bool)
    computed[order] = True
    return computed


def asked_ahead(computed: Sequence[bool], log_snr: Sequence[float]) -> int:
    """The step about whose noise level the evaluation at the first step asks: at most halfway to the next evaluation.

    0 if the first step has signal already, or if the next evaluation is near.
    """
    following = [step for step, one in enumerate(computed) if one and step][:1]
    if not following:
        return 0
    progress = progress_of(len(computed), log_snr)
    halfway = int(np.flatnonzero(progress <= progress[following[0]] / 2)[-1])
    return min(halfway, _silent(log_snr))


def _silent(log_snr: Sequence[float] | None) -> int:
    """The last of the first steps whose samples are all noise; 0 if there is none."""
    if log_snr is None:
        return 0
    return max(0, next((step for step, level in enumerate(log_snr) if level > SILENT), len(log_snr)) - 1)


def progress_of(steps: int, log_snr: Sequence[float] | None) -> NDArray[np.float64]:
    """How far along each step is, from 0 to 1."""
    number = np.arange(steps) / max(1, steps - 1)
    if log_snr is None or not log_snr[-1] > log_snr[0]:
        return number
    level = np.maximum.accumulate(np.asarray(log_snr, dtype=np.float64))
    angle = -np.arctan(np.exp(-level))  # tan = noise / signal
    return NUMBER * number + LEVEL * _normed(level) + ANGLE * _normed(angle)


def _normed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """From 0 to 1; evenly if there is hardly a difference between the first and the last."""
    span = values[-1] - values[0]
    return (values - values[0]) / span if span > 1e-9 else np.linspace(0, 1, len(values))
