"""For text: compute everything at some steps, and only the positions that matter at the others."""

from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tenuto.errors import UsageError, check_whole, is_number
from tenuto.scheduling.making import check_request, make
from tenuto.scheduling.refresh import BUDGET
from tenuto.scheduling.schedule import Keep, Rows, Schedule
from tenuto.scheduling.units import Subject

WRITTEN = 4  # the default period if held units are computed at written positions only
Early = Literal["early", "careful", "checked"]
Every = int | Early
# Steps computed in full before the distance doubles.
FIRST: Mapping[str, int] = {"early": 4, "careful": 8, "checked": 4}


def rewrite(
    subject: Subject,
    steps: int,
    *,
    every: Every | None = None,
    budget: float | None = None,
    blocks: int = 1,
    rows: Rows | None = None,
    held: float | None = None,
) -> Schedule:
    """For text: compute everything at some steps, and only the positions that matter at the others.

    every, budget  the refresh period within a block; or a budget, which is not exceeded if possible. Blocks leave few
                   periods to choose from, and the nearest one might compute everything. `every="early"`: full steps are
                   the first four, and then ever fewer, at the powers of two. "careful": the same, but the first eight.
                   "checked": the same as "early", and a text whose cache fails a check there uses no cache any more
    blocks         how many blocks the text is written in; each block begins with a full step
    rows           the positions that are computed at every step. By default, with several blocks: those of the block
                   that is being written. With one block: those written since the last full step
    held           the share of units that are ever held; the others are computed at every step. Held units are those in
                   the middle of the network, because the first units read what was written and the last decide what to
                   write. By default all units, if the whole block is computed; else as many as the budget requires,
                   refreshed every fourth step
    """
    check_request(steps, budget)
    if every is not None and budget is not None:
        raise UsageError("Give the refresh period or a budget, not both: one follows from the other.")
    check_whole("The number of blocks", blocks)
    if every is not None and every not in FIRST:
        if isinstance(every, str):
            raise UsageError(f"The refresh period is a whole number, {listed(FIRST)}, not {every!r}.")
        check_whole("The refresh period", every)
    if steps % blocks:
        raise UsageError(f"{steps} steps cannot be shared equally among {blocks} blocks.")
    if rows is None:
        rows = "block" if blocks > 1 else "written"
    wanted = BUDGET if budget is None else budget
    if held is None:
        held = 1.0
        if rows == "written" and every is None and wanted > 1 / WRITTEN:
            share = (1 - wanted) / (1 - 1 / WRITTEN)
            every, held = (WRITTEN, share) if round(share * len(subject.units)) else (1, 1.0)
    if not is_number(held) or not 0 < held <= 1:
        raise UsageError(f"The share of units to hold lies above 0 and is at most 1, not {held}.")
    chosen, length = middle(len(subject.units), held), steps // blocks

    def pattern(period: Every) -> NDArray[np.bool_]:
        fresh = full_steps(np.arange(steps) % length, period)
        return np.where(chosen[:, None], fresh[None], True)

    if every is None:
        shares = {period: float(pattern(period).mean()) for period in range(1, length + 1)}
        within = [period for period, share in shares.items() if share <= wanted + 1e-9]
        nearest: int = min(within or shares, key=lambda period: (abs(shares[period] - wanted), period))
        every = nearest
    policy: dict[str, object] = {"name": "rewrite", "every": every, "held": held, "budget": budget}
    # If all units are held outside these positions, nothing changes there, and only the KV cache must be kept.
    keep: Keep = "keys" if rows in ("block", "generated") and chosen.all() else "update"
    return make(subject, pattern(every), "constant", keep, policy, rows=rows, blocks=blocks)


def listed(names: Iterable[str]) -> str:
    """'early', 'careful' or 'checked'"""
    *first, last = (repr(name) for name in names)
    return f"{', '.join(first)} or {last}"


def full_steps(step: NDArray[np.int_], every: Every) -> NDArray[np.bool_]:
    """Which steps of a block, counted from 0, compute everything.

    An answer changes most at its first steps: they write its first tokens, and decide where the others go. So `early`
    computes everything at 0, 1, 2, 3, 4, 8, 16, 32, … and `checked` at the same steps.
    """
    if isinstance(every, str):
        return np.asarray((step < FIRST[every]) | (step & (step - 1) == 0))
    return np.asarray(step % every == 0)


def checks(schedule: Schedule) -> bool:
    """Whether parallel decoding checks the cache at every step that computes everything."""
    return schedule.policy.get("every") == "checked"


def middle(units: int, share: float) -> NDArray[np.bool_]:
    """[unit]: whether the unit belongs to this share of the units, in the middle of the network."""
    count = max(1, round(share * units))
    first = (units - count) // 2
    place = np.arange(units)
    return (place >= first) & (place < first + count)
