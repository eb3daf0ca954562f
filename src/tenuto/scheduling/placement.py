"""Where to evaluate: which steps are computed, for a given number of evaluations.

The noise falls unevenly along the steps of most schedulers, and the network's estimate changes with the noise. So the
evaluations are spread evenly over a mixture of the step's number and its noise level (the logarithm of the
signal-to-noise ratio). The last step is always computed, because it decides over the finest detail.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MANY = 16  # evaluations
MIXED, MIXED_IF_FEW = 0.5, 0.25  # share of the noise level in the mixture, with so many or more evaluations, and fewer


def placed(steps: int, evaluations: int, log_snr: Sequence[float] | None = None) -> NDArray[np.bool_]:
    """[step]: whether the step is computed. Exactly `evaluations` steps are, the first and the last among them.

    log_snr  of each step; None if it is unknown. Then evaluations are spread evenly over the steps
    """
    if evaluations >= steps:
        return np.ones(steps, dtype=bool)
    progress = progress_of(steps, log_snr, MIXED if evaluations >= MANY else MIXED_IF_FEW)
    aims = np.linspace(0, 1, evaluations)
    order, last = [], -1
    for number, aim in enumerate(aims):
        nearest = int(np.abs(progress - aim).argmin())
        last = min(max(nearest, last + 1), steps - evaluations + number)  # two aims may fall on one step
        order.append(last)
    computed = np.zeros(steps, dtype=bool)
    computed[order] = True
    return computed


def progress_of(steps: int, log_snr: Sequence[float] | None, mixed: float = MIXED) -> NDArray[np.float64]:
    """How far along each step is, from 0 to 1."""
    number = np.arange(steps) / max(1, steps - 1)
    if log_snr is None or not log_snr[-1] > log_snr[0]:
        return number
    level = np.maximum.accumulate(np.asarray(log_snr, dtype=np.float64))
    return (1 - mixed) * number + mixed * (level - level[0]) / (level[-1] - level[0])
