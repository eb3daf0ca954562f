"""Where to evaluate: which steps are computed, for a given number of evaluations.

The noise falls unevenly along the steps of most schedulers, and the network's estimate changes with the noise: most
where picture and noise are about equally strong. So the evaluations are spread evenly over a mixture of three measures
of progress: the step's number, its noise level (the logarithm of the signal-to-noise ratio), and the angle between
signal and noise. `python -m benchmarks.search --placements` is where the mixture was found.

The last step is computed as well, because it decides over the finest detail, unless there are few evaluations for many
steps: then the last evaluation is worth more a little earlier.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FEW = 9  # evaluations; fewer than these are few
NUMBER, LEVEL, ANGLE = 0.5, 0.3, 0.2  # shares in the mixture


def placed(steps: int, evaluations: int, log_snr: Sequence[float] | None = None) -> NDArray[np.bool_]:
    """[step]: whether the step is computed. Exactly `evaluations` steps are, the first among them.

    log_snr  of each step; None if it is unknown. Then evaluations are spread evenly over the steps
    """
    if evaluations >= steps:
        return np.ones(steps, dtype=bool)
    progress = progress_of(steps, log_snr)
    early = evaluations < FEW and steps >= 4 * evaluations
    aims = np.linspace(0, 1 - 0.5 / evaluations if early else 1, evaluations)
    order, last = [], -1
    for number, aim in enumerate(aims):
        nearest = int(np.abs(progress - aim).argmin())
        last = min(max(nearest, last + 1), steps - evaluations + number)  # two aims may fall on one step
        order.append(last)
    computed = np.zeros(steps, dtype=bool)
    computed[order] = True
    return computed


def progress_of(steps: int, log_snr: Sequence[float] | None) -> NDArray[np.float64]:
    """How far along each step is, from 0 to 1."""
    number = np.arange(steps) / max(1, steps - 1)
    if log_snr is None or not log_snr[-1] > log_snr[0]:
        return number
    level = np.maximum.accumulate(np.asarray(log_snr, dtype=np.float64))
    angle = -np.arctan(np.exp(-level))  # tan = noise / signal
    return NUMBER * number + LEVEL * _normed(level) + ANGLE * _normed(angle)


def _normed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return (values - values[0]) / (values[-1] - values[0])
