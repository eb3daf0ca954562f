"""The paper's control that knows the outcome: the fewest units that keep the output of a full run, for one input."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.runtime.compilation import computed
from tenuto.runtime.private_torch import tree_map_only
from tenuto.runtime.residual import Branch
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.probing.trajectory import Network, RecordedEvaluation, Trajectory
from tenuto_lab.rivals.common import schedule_for

TOLERANCE = 5e-3  # τ_agree
AHEAD = "modulations"  # what a sampler computed ahead; its rows lie elsewhere, and the network can compute it itself
ROWS = 64  # rows of a batch of candidates


@dataclass(frozen=True, eq=False)
class Oracle:
    """What the search found for one input."""

    schedule: Schedule  # the ordinary executor replays it
    deviations: NDArray[np.float64]  # [step]: output against the full run's output, at the full run's state
    forced: int  # unit-steps frozen beyond the tolerance, to stay below the ceiling

    @property
    def unit_steps(self) -> int:
        return int(self.schedule.active.sum())


@torch.no_grad()
def oracle_replay(
    model: Model,
    trajectory: Trajectory,
    *,
    tolerance: float = TOLERANCE,
    ceiling: int | None = None,
    progress: Callable[[int, int], object] = lambda step, active: None,
) -> Oracle:
    """The pattern that the paper's oracle finds for one recorded generation.

    At every step but the first, the search freezes one unit after another: always the unit that leaves the output
    nearest to the full run's (of equals, the first). It stops before the output leaves the tolerance. A frozen unit
    adds its last computed update. The search measures at the states of the full run. The replay has its own states,
    which drift away from the full run's. Candidates are rows of one batch.

    ceiling   the most unit-steps that may be computed. The rest of the ceiling is shared evenly among the steps left.
              If a step would exceed its share, freezing goes on beyond the tolerance; `forced` counts how often
    progress  called after each step, counted from 1, with the number of units computed there
    """
    names = [unit.name for unit in model.units]
    if not tolerance >= 0:
        raise UsageError(f"The tolerance is a relative deviation, not negative, and {tolerance} is no such number.")
    if ceiling is not None and ceiling < len(names):
        raise UsageError(f"The first step alone computes {len(names)} units, so the ceiling cannot be {ceiling}.")
    steps = len(trajectory)
    active, deviations, forced = np.ones((len(names), steps), dtype=bool), np.zeros(steps), 0
    held: dict[str, Tensor] = {}
    for step, evaluation in enumerate(trajectory):
        most = len(names)  # units that may be computed at this step
        if ceiling is not None and step:
            most = min(most, (ceiling - int(active[:, :step].sum())) // (steps - step))
        frozen: list[str] = []
        deviation = 0.0
        while step and (left := [name for name in names if name not in frozen]):
            found = _deviations(model.network, evaluation, held, [(*frozen, name) for name in left])
            nearest = int(np.argmin(found))
            if found[nearest] > tolerance:
                if len(left) <= most:
                    break
                forced += 1
            frozen.append(left[nearest])
            deviation = float(found[nearest])
        last = _Candidates(held, [frozenset(frozen)])
        evaluation.again(model.network, last)
        held.update(last.updates)
        active[:, step] = [name not in frozen for name in names]
        deviations[step] = deviation
        progress(step + 1, int(active[:, step].sum()))
    policy = {"name": "oracle_replay", "tolerance": tolerance, "ceiling": ceiling}
    return Oracle(schedule_for(model, active, "update", policy), deviations, forced)


def _deviations(
    network: Network, evaluation: RecordedEvaluation, held: Mapping[str, Tensor], sets: Sequence[Sequence[str]]
) -> NDArray[np.float64]:
    """For each set of frozen units: how far the output is from the full run's, relative."""
    rows, exact = len(evaluation.state), evaluation.output.double().flatten()
    together = max(1, ROWS // rows)
    found = []
    for first in range(0, len(sets), together):
        some = [frozenset(one) for one in sets[first : first + together]]
        repeated = RecordedEvaluation(
            _repeated(evaluation.inputs, rows, len(some)),
            _repeated({name: value for name, value in evaluation.named.items() if name != AHEAD}, rows, len(some)),
            evaluation.output,
        )
        outputs = repeated.again(network, _Candidates(held, some)).double().reshape(len(some), -1)
        off = torch.linalg.vector_norm(outputs - exact, dim=1) / (torch.linalg.vector_norm(exact) + 1e-8)
        found += off.tolist()
    return np.array(found)


def _repeated(tree: Any, rows: int, times: int) -> Any:
    """Every tensor with a row for each sample, repeated for each candidate."""

    def more(x: Tensor) -> Tensor:
        return x.repeat(times, *[1] * (x.ndim - 1)) if x.ndim and len(x) == rows else x

    return tree_map_only(Tensor, more, tree)


class _Candidates:
    """A residual for a batch of candidates. Each has its own set of frozen units."""

    def __init__(self, held: Mapping[str, Tensor], frozen: Sequence[frozenset[str]]) -> None:
        self._held, self._frozen = held, frozen
        self.updates: dict[str, Tensor] = {}  # of the units that every candidate computes

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        holds = [unit in one for one in self._frozen]
        as_rows = (1,) * (h.ndim - 1)
        if all(holds):
            return h + self._held[unit].repeat(len(holds), *as_rows)
        after, update = computed(h, branch, gate, "update")
        if not any(holds):
            self.updates[unit] = update
            return after
        frozen = torch.tensor(holds, device=h.device).repeat_interleave(len(h) // len(holds)).reshape(-1, *as_rows)
        return torch.where(frozen, h + self._held[unit].repeat(len(holds), *as_rows), after)
