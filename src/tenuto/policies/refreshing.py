"""Refreshing: all units computed together again and again, and what they gave extrapolated in between.

refresh   every R-th step, once more at the beginning, where there is nothing yet to extrapolate from, and at the last
          few, where the noise falls fastest. The default: it keeps the picture
rewrite   the same for text, where nothing tells steps apart but the tokens that were written
by_noise  at steps that the sampler's own noise levels choose

When to use which: `refresh`. `by_noise` is here because it is the obvious thing to try; uneven gaps cost the
extrapolation more than their places win (docs/schedules.md).
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tenuto.errors import UsageError
from tenuto.policies.common import check, make
from tenuto.schedules import Hold, Reuse, Rows, Schedule
from tenuto.scores import Scores

BUDGET = 0.25
CLOSING = 3  # steps at the end that compute everything
MANY = 10  # refreshes, from which on those are a small part of the work
FEW = 6  # refreshes, below which a line is the most that can be laid through them
WRITTEN = 4  # the period where held units are computed at written positions only


def refresh(
    scores: Scores,
    steps: int,
    *,
    every: int | None = None,
    budget: float | None = None,
    opening: bool | None = None,
    closing: int | None = None,
    reuse: Reuse | None = None,
    hold: Hold | None = None,
    correction: bool | None = None,
) -> Schedule:
    """Every unit computed at steps 1, 1+R, 1+2R, … and at the last `closing` ones.

    every, budget  R, or the budget whose R is nearest
    opening        whether it is computed once more half-way to the second refresh, before which there is nothing to
                   extrapolate from; by default where refreshes are many
    closing        by default three; one where refreshes are few and those would be a large part of the work (but where
                   units are held, an opening one instead), and none where there are so few that they had better be
                   spread evenly
    reuse          by default cubic, through the last four refreshes; quadratic, or linear, where refreshes are few
    hold           by default the network's output, which takes no memory to speak of and no time at all in between.
                   branch and update hold every unit, which keeps more detail where refreshes are few and takes longer
    correction     whether a refresh makes up for what was extrapolated since the last; by default where the output is
                   held. It takes a sampler that says how it adds outputs up, as those without randomness do
    """
    check(steps, budget)
    if every is not None and budget is not None:
        raise UsageError("Give the refresh period or a budget, not both: one follows from the other.")
    if closing is not None and not 0 <= closing <= steps:
        raise UsageError(f"Between 0 and all {steps} of the last steps can be computed, not {closing}.")
    hold = hold or "output"
    if every is None:
        every = period_for_budget(steps, BUDGET if budget is None else budget, opening, closing, hold)
    if every < 1:
        raise UsageError(f"The refresh period must be at least 1 step, not {every}.")
    first, last = _ends(steps, every, opening, closing, hold)
    active = refresh_pattern(len(scores.units), steps, every, last, first)
    policy = {"name": "refresh", "every": every, "opening": first, "closing": last, "budget": budget}
    corrected = hold == "output" if correction is None else correction
    return make(scores, active, reuse or reuse_for(steps, every), hold, policy, corrected=corrected)


def refresh_pattern(units: int, steps: int, every: int, closing: int = 0, opening: bool = False) -> NDArray[np.bool_]:
    """[unit, step]: all units computed together at every R-th step, at the last ones, and half-way to the second."""
    step = np.arange(steps)
    computed = (step % every == 0) | (step >= steps - closing) | (opening & (step == every // 2))
    return np.tile(computed, (units, 1))


def _ends(steps: int, every: int, opening: bool | None, closing: int | None, hold: Hold) -> tuple[bool, int]:
    """How it begins and ends where nobody says."""
    refreshes = math.ceil(steps / every)
    many, few = refreshes >= MANY, FEW <= refreshes < MANY
    begins = (many or (few and hold != "output")) and every > 2
    ends = CLOSING if many else int(few and hold == "output")
    return begins if opening is None else opening, ends if closing is None else closing


def like(schedule: Schedule, every: int, reuse: Reuse | None = None) -> Schedule:
    """The default kind of schedule for the same model and steps, at this period."""
    opening, closing = _ends(schedule.steps, every, None, None, "output")
    active = refresh_pattern(len(schedule.units), schedule.steps, every, closing, opening)
    policy = {"name": "refresh", "every": every, "opening": opening, "closing": closing, "budget": None}
    reuse = reuse or reuse_for(schedule.steps, every)
    return replace(schedule, active=active, reuse=reuse, hold="output", policy=policy, rows="none", corrected=True)


def reuse_for(steps: int, every: int) -> Reuse:
    """By a polynomial of as high a degree as the distance between refreshes bears."""
    refreshes = math.ceil(steps / every)
    return "cubic" if refreshes >= MANY else "quadratic" if refreshes >= FEW else "linear"


def period_for_budget(
    steps: int, budget: float, opening: bool | None = None, closing: int | None = None, hold: Hold = "output"
) -> int:
    """The refresh period R whose share of the steps is nearest to `budget`; of two as near, the shorter."""

    def share(every: int) -> float:
        first, last = _ends(steps, every, opening, closing, hold)
        return float(refresh_pattern(1, steps, every, last, first).mean())

    return min(range(1, steps + 1), key=lambda every: (abs(share(every) - budget), every))


def by_noise(
    scores: Scores,
    steps: int,
    levels: Sequence[float],
    *,
    budget: float = BUDGET,
    evenness: float = 0.5,
    reuse: Reuse = "linear",
    hold: Hold = "branch",
) -> Schedule:
    """Refreshes spread evenly over a mixture of the steps and what changes from step to step.

    levels    a number for each step that grows with the trajectory: the logarithm of the signal-to-noise ratio
    evenness  1 spreads them over the steps alone, 0 over the levels alone
    """
    check(steps, budget)
    if len(levels) != steps:
        raise UsageError(f"There must be a noise level for each of the {steps} steps, not {len(levels)}.")
    if not 0 <= evenness <= 1:
        raise UsageError(f"The evenness lies between 0 and 1, not at {evenness}.")
    way = np.asarray(levels, dtype=np.float64)
    way = (way - way[0]) / ((way[-1] - way[0]) or 1.0) * (steps - 1)
    way = evenness * np.arange(steps) + (1 - evenness) * way
    count = min(steps, max(1, round(budget * steps)))
    targets = np.arange(count) * way[-1] / max(1, count - 1)
    chosen = {0, *(int(np.abs(way - target).argmin()) for target in targets)}
    while len(chosen) < count:  # two targets met at one step: halve the widest gap
        ends = [*sorted(chosen), steps]
        start = max(range(len(ends) - 1), key=lambda i: ends[i + 1] - ends[i])
        chosen.add((ends[start] + ends[start + 1]) // 2)
    active = np.tile(np.isin(np.arange(steps), list(chosen)), (len(scores.units), 1))
    return make(scores, active, reuse, hold, {"name": "noise", "budget": budget, "evenness": evenness})


def rewrite(
    scores: Scores,
    steps: int,
    *,
    every: int | None = None,
    budget: float | None = None,
    blocks: int = 1,
    rows: Rows | None = None,
    held: float | None = None,
) -> Schedule:
    """For text: units held with refresh, but computed at the positions that matter meanwhile.

    every, budget  the refresh period within a block, or the budget that it is to stay within: blocks leave few
                   periods to choose from, and the nearest could be to compute everything
    blocks         of the generation: each begins with a full step
    rows           the positions that held units are computed at: by default those of the block that is being written,
                   where there are several, and those written since the last full step where all is one block
    held           share of the units that are ever held, the rest being computed at every step: those in the middle of
                   the network, for the first read what was written and the last decide what to write. By default all
                   where the whole block is computed; else as many as the budget says, refreshed every fourth step
    """
    check(steps, budget)
    if every is not None and budget is not None:
        raise UsageError("Give the refresh period or a budget, not both: one follows from the other.")
    if blocks < 1 or steps % blocks:
        raise UsageError(f"{steps} steps cannot be shared equally among {blocks} blocks.")
    rows = rows or ("block" if blocks > 1 else "written")
    wanted = BUDGET if budget is None else budget
    if held is None:
        held = 1.0
        if rows == "written" and every is None and wanted > 1 / WRITTEN:
            share = (1 - wanted) / (1 - 1 / WRITTEN)
            every, held = (WRITTEN, share) if round(share * len(scores.units)) else (1, 1.0)
    if not 0 < held <= 1:
        raise UsageError(f"The share of units to hold lies above 0 and is at most 1, not {held}.")
    chosen, length = middle(len(scores.units), held), steps // blocks

    def pattern(period: int) -> NDArray[np.bool_]:
        fresh = np.arange(steps) % length % period == 0
        return np.where(chosen[:, None], fresh[None], True)

    if every is None:
        shares = {period: float(pattern(period).mean()) for period in range(1, length + 1)}
        within = [period for period, share in shares.items() if share <= wanted + 1e-9]
        every = min(within or shares, key=lambda period: (abs(shares[period] - wanted), period))
    if every < 1:
        raise UsageError(f"The refresh period must be at least 1 step, not {every}.")
    policy = {"name": "rewrite", "every": every, "blocks": blocks, "held": held, "budget": budget}
    # Where all units are held outside the block, nothing changes there: its keys and values are all that is needed.
    hold: Hold = "keys" if rows in ("block", "generated") and chosen.all() else "update"
    return make(scores, pattern(every), "hold", hold, policy, rows)


def middle(units: int, share: float) -> NDArray[np.bool_]:
    """[unit]: a share of them, those furthest from both ends of the network."""
    count = max(1, round(share * units))
    first = (units - count) // 2
    place = np.arange(units)
    return (place >= first) & (place < first + count)
