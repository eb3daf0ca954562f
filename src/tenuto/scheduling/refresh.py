"""For pictures: evaluate the network at some steps, and predict in between. This is the default."""

from collections.abc import Sequence

import numpy as np

from tenuto.errors import UsageError, check_whole
from tenuto.scheduling.making import check_request, make
from tenuto.scheduling.placement import MANY, asked_ahead, placed
from tenuto.scheduling.schedule import Keep, Predict, Schedule
from tenuto.scheduling.units import Subject

BUDGET = 0.25
LEAST = 6  # evaluations that a budget leaves at least: with fewer, pictures fall apart


def refresh(
    subject: Subject,
    steps: int,
    *,
    evaluations: int | None = None,
    every: int | None = None,
    budget: float | None = None,
    predict: Predict | None = None,
    keep: Keep | None = None,
    correction: bool | None = None,
    log_snr: Sequence[float] | None = None,
    ahead: bool = False,
) -> Schedule:
    """Every unit is computed at some steps, and nothing at the others.

    evaluations  how many steps are computed; placed by the noise levels, if those are known
    every        instead: compute the first of every R steps
    budget       instead: the share of the steps to compute, but at least six
    predict      by default quadratic, through the last three refreshes
    keep         by default the network's output, which takes little memory, and almost no time at steps in between.
                 branch and update keep every unit by itself: this takes longer
    correction   whether a refresh corrects what was predicted since the last refresh; by default if the output is kept
    log_snr      of each step: half the logarithm of the sampler's signal-to-noise ratio
    ahead        whether the sampler can ask the network about another noise level than its own, as Tenuto's can; with
                 fewer than twelve evaluations its first one does, if there is no signal yet
    """
    check_request(steps, budget)
    if sum(one is not None for one in (evaluations, every, budget)) > 1:
        raise UsageError("Give evaluations, a refresh period or a budget, not two of them: one follows from the other.")
    if log_snr is not None and len(log_snr) != steps:
        raise UsageError(f"There must be a noise level for each of the {steps} steps, not {len(log_snr)}.")
    keep = "output" if keep is None else keep
    corrected = keep == "output" if correction is None else correction
    asks_ahead = False
    if every is not None:
        check_whole("The refresh period", every)
        computed = np.arange(steps) % every == 0
    else:
        if evaluations is None:
            evaluations = evaluations_for(steps, BUDGET if budget is None else budget)
        check_evaluations(evaluations)
        if evaluations > steps:
            raise UsageError(
                f"There are {steps} steps, so there cannot be {evaluations} evaluations: ask for {steps} at most."
            )
        ahead = ahead and corrected and evaluations < MANY
        computed = placed(steps, evaluations, log_snr, ahead)
        asks_ahead = ahead and log_snr is not None and asked_ahead(computed.tolist(), log_snr) > 0
    count = int(computed.sum())
    policy = {"name": "refresh", "evaluations": count, "every": every, "budget": budget}
    active = np.tile(computed, (len(subject.units), 1))
    predict = "quadratic" if predict is None else predict
    return make(subject, active, predict, keep, policy, corrected=corrected, ahead=asks_ahead)


def check_evaluations(evaluations: int) -> None:
    check_whole("The number of evaluations", evaluations)


def evaluations_for(steps: int, budget: float) -> int:
    """The number of evaluations that a budget stands for: this share of the steps, but not fewer than six."""
    return min(steps, max(LEAST, round(budget * steps)))
