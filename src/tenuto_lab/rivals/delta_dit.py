"""Δ-DiT (Chen et al. 2024): holds a range of blocks together, the last blocks early and the first blocks late."""

from collections.abc import Sequence

import numpy as np

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.scheduling.schedule import Schedule
from tenuto.scheduling.units import block_of
from tenuto_lab.rivals.common import check_period, schedule_for


def delta_dit(model: Model, steps: int, *, every: int, cached: int, boundary: float) -> Schedule:
    """Δ-DiT computes every block at every N-th step. In between, it holds N_c blocks and computes the others.

    The method caches the deviation that the held blocks together add to the stream; their input stays live. The
    deviation is the sum of the updates of their units, and a schedule can hold updates.

    The published method chooses N, N_c and b for each model and number of steps, so there are no defaults here.

    every     N
    cached    N_c, how many blocks are held: the last blocks before the boundary, the first blocks after it
    boundary  b as a share of the steps, counted from the noisiest: outlines form before it, details after it
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
    """The index of each unit's block. A block is what `scoring.units.block_of` says."""
    places: dict[str, int] = {}
    found = [places.setdefault(block_of(unit), len(places)) for unit in units]
    if found != sorted(found):
        raise UsageError("The units of a block do not follow one another, so there is no range of blocks to hold.")
    return found
