"""For pictures: evaluate the network at some steps, and predict in between. This is the default."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tenuto.errors import UsageError, check_whole
from tenuto.scheduling.making import check_request, make
from tenuto.scheduling.placement import MANY, placed
from tenuto.scheduling.schedule import Keep, Predict, Schedule
from tenuto.scoring.units import Subject

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
    keep = keep or "output"
    corrected = keep == "output" if correction is None else correction
    if every is not None:
        check_whole("The refresh period", every)
        computed = np.arange(steps) % every == 0
    else:
        if evaluations is None:
            evaluations = evaluations_for(steps, BUDGET if budget is None else budget)
        check_evaluations(evaluations)
        ahead = ahead and corrected and log_snr is not None and evaluations < MANY
        computed = placed(steps, evaluations, log_snr, ahead)
    count = int(computed.sum())
    policy: dict[str, object] = {"name": "refresh", "evaluations": count, "every": every, "budget": budget}
    if ahead and every is None:
        policy["ahead"] = True
    active = np.tile(computed, (len(subject.units), 1))
    return make(subject, active, predict or "quadratic", keep, policy, corrected=corrected)


def check_evaluations(evaluations: int) -> None:
    check_whole("The number of evaluations", evaluations)


def evaluations_for(steps: int, budget: float) -> int:
    """The number of evaluations that a budget stands for: this share of the steps, but not fewer than six."""
    return min(steps, max(LEAST, round(budget * steps)))


def like(schedule: Schedule, evaluations: int, predict: Predict | None = None) -> Schedule:
    """The default kind of schedule for the same model and steps, with this number of evaluations."""
    active = np.tile(placed(schedule.steps, evaluations), (len(schedule.units), 1))
    policy = {"name": "refresh", "evaluations": evaluations, "every": None, "budget": None}
    return replace(
        schedule,
        active=active,
        predict=predict or "quadratic",
        keep="output",
        policy=policy,
        rows="none",
        corrected=True,
    )


def refresh_pattern(units: int, steps: int, every: int, closing: int = 0) -> NDArray[np.bool_]:
    """[unit, step]: all units together, at every R-th step and at the last steps."""
    step = np.arange(steps)
    return np.tile((step % every == 0) | (step >= steps - closing), (units, 1))
