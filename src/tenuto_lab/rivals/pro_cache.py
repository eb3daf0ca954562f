"""ProCache (Cao et al. 2026): full steps at intervals that shrink towards the end, and the deep blocks in between.

Patterns of full steps are drawn at random within constraints (so many full steps, bounded intervals that never grow),
and the one that stays nearest to the full run on a few samples is taken. Where several steps in a row hold, every
second of them computes the deep blocks. The published method computes only the most important tokens there; here all.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.runtime.executor import Executor
from tenuto.scheduling.making import check_budget
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.probing.trajectory import Sample
from tenuto_lab.rivals.common import schedule_for
from tenuto_lab.rivals.delta_dit import blocks_of

CANDIDATES = 5  # patterns that are tried
DEEP = 0.25  # share of the blocks that counts as deep: the last 7 of DiT-XL/2's 28
ATTEMPTS = 10_000


def pro_cache(model: Model, steps: int, budget: float, sample: Sample, *, seed: int = 0) -> Schedule:
    """The pattern nearest to the full run, of those whose work is about the budget.

    sample  generates in `steps` steps with the executor it receives, and returns what it generated
    """
    check_budget(budget)
    full = sample(Executor(model.network))
    if not isinstance(full, Tensor):
        raise UsageError("To compare patterns, `sample` must give what it generated, as a tensor.")
    nearest: tuple[float, Schedule] | None = None
    for pattern in patterns(steps, _full_steps(model, steps, budget), seed):
        policy = {"name": "pro_cache", "budget": budget, "seed": seed, "full": np.flatnonzero(pattern).tolist()}
        made = schedule_for(model, selective(model, pattern), "update", policy)
        off = float(torch.linalg.vector_norm((_sampled(sample, model, made) - full).double()))
        if nearest is None or off < nearest[0]:
            nearest = off, made
    assert nearest is not None
    return nearest[1]


def _sampled(sample: Sample, model: Model, schedule: Schedule) -> Tensor:
    found = sample(Executor(model.network, schedule))
    assert isinstance(found, Tensor)
    return found


def _full_steps(model: Model, steps: int, budget: float) -> int:
    """The number of full steps whose work, with the deep blocks in between, comes nearest to the budget."""

    def work(count: int) -> float:
        return float(selective(model, patterns(steps, count, 0, 1)[0]).mean())

    return min(range(1, steps + 1), key=lambda count: abs(work(count) - budget))


def patterns(steps: int, count: int, seed: int, candidates: int = CANDIDATES) -> list[NDArray[np.bool_]]:
    """Patterns [step] with so many full steps, the first included. Their intervals never grow, and no interval is
    longer than twice the mean."""
    most = -(-2 * steps // count)
    draw = np.random.default_rng(seed)
    found: dict[tuple[int, ...], None] = {}
    for _ in range(ATTEMPTS):
        cuts = np.sort(draw.integers(0, steps - count + 1, size=count - 1))
        lengths = 1 + np.diff(np.concatenate([[0], cuts, [steps - count]]))
        if lengths.max() <= most:
            found[tuple(sorted(lengths.tolist(), reverse=True))] = None
        if len(found) >= candidates:
            break
    return [_started(lengths) for lengths in found] or [_started(_even(steps, count))]


def _even(steps: int, count: int) -> tuple[int, ...]:
    """Intervals as equal as can be, the longer ones first."""
    return tuple(steps // count + (i < steps % count) for i in range(count))


def _started(lengths: Sequence[int]) -> NDArray[np.bool_]:
    """[step]: True where an interval begins."""
    pattern = np.zeros(sum(lengths), dtype=bool)
    pattern[np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(int)] = True
    return pattern


def selective(model: Model, full: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[unit, step]: everything at full steps; at every second held step of a row, the deep blocks."""
    block = np.array(blocks_of([unit.name for unit in model.units]))
    deep = block >= round((1 - DEEP) * (block[-1] + 1))
    active = np.zeros((len(block), len(full)), dtype=bool)
    held = 0
    for step, whole in enumerate(full):
        held = 0 if whole else held + 1
        active[:, step] = True if whole else deep & (held % 2 == 0)
    return active
