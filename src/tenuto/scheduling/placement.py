"""Where to evaluate: which steps are computed, for a given number of evaluations.

The noise falls unevenly along the steps of most schedulers, and the network's estimate changes with the noise. So the
evaluations are spread evenly over a mixture of the step's number and its noise level (the logarithm of the
signal-to-noise ratio). The last step is always computed, because it decides over the finest detail.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MIXED = 0.5  # share of the noise level in the mixture; the rest is the step's number


def placed(steps: int, evaluations: int, log_snr: Sequence[float] | None = None) -> NDArray[np.bool_]:
    """[step]: whether the step is computed. Exactly `evaluations` steps are, the first and the last among them.

    log_snr  of each step; None if it is unknown. Then evaluations are spread evenly over the steps
    """
    if evaluations >= steps:
        return np.ones(steps, dtype=bool)
    progress = _progress(steps, log_snr)
    chosen = {0} if evaluations == 1 else {0, steps - 1}
    for aims in range(evaluations - 1, steps):  # if two aims fall on one step, there must be more aims
        found = {int(np.abs(progress - aim).argmin()) for aim in np.linspace(0, 1, max(2, aims))[:-1]}
        if len(chosen | found) >= evaluations > 1:
            chosen |= found
            break
    order = sorted(chosen)
    while len(order) > evaluations:  # leave out where the gap that opens is the smallest
        gaps = [progress[order[i + 1]] - progress[order[i - 1]] for i in range(1, len(order) - 1)]
        del order[1 + int(np.argmin(gaps))]
    computed = np.zeros(steps, dtype=bool)
    computed[order] = True
    return computed


def _progress(steps: int, log_snr: Sequence[float] | None) -> NDArray[np.float64]:
    """How far along each step is, from 0 to 1."""
    number = np.arange(steps) / max(1, steps - 1)
    if log_snr is None or not log_snr[-1] > log_snr[0]:
        return number
    level = np.maximum.accumulate(np.asarray(log_snr, dtype=np.float64))
    return (1 - MIXED) * number + MIXED * (level - level[0]) / (level[-1] - level[0])
