"""Δ-DiT (Chen et al. 2024): a range of blocks held together, the rear ones early and the front ones late."""

from collections.abc import Sequence

import numpy as np

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.rivals.common import check_period, schedule_for


def delta_dit(model: Model, steps: int, *, every: int, cached: int, boundary: float) -> Schedule:
    """Δ-DiT: everything at every N-th step; in between N_c blocks are held, and the others computed.

    What is held is the deviation that the blocks together add to the stream, so the stream that comes in stays live.
    It is the sum of their units' updates, which is what a schedule holds.

    The published method chooses N, N_c and b for each model and number of steps; there are no defaults here.

    every     N
    cached    N_c, how many blocks are held: the last ones before the boundary, the first ones behind it
    boundary  b as a share of the steps, counted from the noisiest: outlines are drawn before it and details behind it
    """
    check_period(every)
    if not 0 <= boundary <= 1:
        raise UsageError(f"The boundary is a share of the steps, between 0 and 1, not {boundary}.")
    block = blocks_of([unit.name for unit in model.units])
    count = block[-1] + 1
    if not 0 <= cached <= count:
        raise UsageError(f"Between 0 and all {count} of the blocks can be held, not {cached}.")
    place, step = np.array(block)[:, None], np.arange(steps)[None, :]
    held = np.where(step < round(boundary * steps), place >= count - cached, place < cached)
    active = ~held | (step % every == 0)
    policy = {"name": "delta_dit", "every": every, "cached": cached, "boundary": boundary}
    return schedule_for(model, active, "update", policy)


def blocks_of(units: Sequence[str]) -> list[int]:
    """The place of each unit's block: what its name says up to its last number."""
    places: dict[tuple[str, ...], int] = {}
    found = []
    for unit in units:
        parts = unit.split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
        block = tuple(parts[: numbers[-1] + 1 if numbers else len(parts) - 1])
        found.append(places.setdefault(block, len(places)))
    if found != sorted(found):
        raise UsageError("The units of a block do not follow one another, so there is no range of blocks to hold.")
    return found
