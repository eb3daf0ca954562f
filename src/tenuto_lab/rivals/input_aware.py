"""The paper's two controls that look at the input: one during generation, one after a full run.

ActivationDrift  computes as many units at each step as a schedule does, but chooses those whose input moved most
oracle_replay    searches for the fewest units that keep the output of a full run; makes a schedule for that one input
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.errors import ScheduleError, UsageError
from tenuto.models import Model
from tenuto.runtime.compilation import computed
from tenuto.runtime.residual import Branch
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.probing.trajectory import Network, RecordedEvaluation, Trajectory, relative
from tenuto_lab.rivals.common import Rival, RivalGeneration, schedule_for

TOLERANCE = 5e-3  # τ_agree

# -------------------------------------------------------------------------------------------------- activation drift


class ActivationDrift(Rival):
    """Causal activation drift: computes the units whose input moved most at the last step, and holds the others.

    d_{ℓ,s−1} = ‖h_{ℓ−1,s−1} − h_{ℓ−1,s−2}‖ / (‖h_{ℓ−1,s−1}‖ + 1e-8), where h is the stream to which the unit is added
    (its shortcut, if it has one). Step s computes as many units as the schedule does at step s; of equal drifts, the
    first unit wins. The first step is full. At the second step no drift is known yet, so the first units are computed.
    Held units keep their update.

    One decision is made for the whole batch; for one decision per sample, draw one sample at a time. The host waits for
    the decision at every step.

    schedule  the static schedule that says how many units to compute at each step
    """

    def __init__(self, network: Network, schedule: Schedule) -> None:
        super().__init__(network)
        self.units = schedule.units
        self.counts: list[int] = schedule.active.sum(axis=0).tolist()  # m_s

    def start(self) -> Any:
        return _Drifting(self)


class _Drifting(RivalGeneration):
    def __init__(self, rival: ActivationDrift) -> None:
        super().__init__(rival)
        self._rival = rival
        self._active: frozenset[str] = frozenset()
        self._streams: dict[str, Tensor] = {}  # the input of each unit at the last step
        self._drifts: dict[str, Tensor] = {}  # the drift of each unit at the last step
        self._held: dict[str, Tensor] = {}

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        counts = self._rival.counts
        if self.step + 1 >= len(counts):
            raise ScheduleError(
                f"The schedule has {len(counts)} steps, but the sampler evaluates the network once more."
            )
        self._active = frozenset(self._chosen(counts[self.step + 1]))
        return super().__call__(*inputs, **named)

    def _chosen(self, count: int) -> Sequence[str]:
        units = self._rival.units
        if not self._drifts:
            return units[:count]
        drifts = torch.stack([self._drifts[unit] for unit in units]).tolist()
        return [units[i] for i in most_drifted(drifts, count)]

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        if (before := self._streams.get(unit)) is not None:
            moved, size = (torch.linalg.vector_norm(x.float()) for x in (h - before, h))
            self._drifts[unit] = moved / (size + 1e-8)
        self._streams[unit] = h
        active = unit in self._active
        self._rival.count(unit, active)
        if active:
            after, self._held[unit] = computed(h, branch, gate, "update")
            return after
        return h + self._held[unit]


def most_drifted(drifts: Sequence[float], count: int) -> list[int]:
    """The indices of the `count` largest drifts; of equal drifts, the first."""
    return sorted(range(len(drifts)), key=lambda i: (-drifts[i], i))[:count]


# ----------------------------------------------------------------------------------------------------- oracle replay


@dataclass(frozen=True, eq=False)
class Oracle:
    """What the search found for one input."""

    schedule: Schedule  # the ordinary executor replays it
    deviations: NDArray[np.float64]  # [step]: output against the full run's output, at the full run's state
    forced: int  # unit-steps frozen beyond the tolerance, to stay below the ceiling

    @property
    def unit_steps(self) -> int:
        return int(self.schedule.active.sum())


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
    which drift away from the full run's.

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
        best = _tried(model.network, evaluation, _FrozenTrial(held))
        while step and (left := [name for name in names if name not in best.frozen]):
            trials = (_tried(model.network, evaluation, best.freezing(name, names)) for name in left)
            nearest = min(trials, key=lambda trial: trial.deviation)
            if nearest.deviation > tolerance:
                if len(left) <= most:
                    break
                forced += 1
            best = nearest
        held.update(best.updates)
        active[:, step] = [name not in best.frozen for name in names]
        deviations[step] = best.deviation
        progress(step + 1, int(active[:, step].sum()))
    policy = {"name": "oracle_replay", "tolerance": tolerance, "ceiling": ceiling}
    return Oracle(schedule_for(model, active, "update", policy), deviations, forced)


class _FrozenTrial:
    """A residual with some units frozen."""

    def __init__(self, held: Mapping[str, Tensor]) -> None:
        self.frozen: frozenset[str] = frozenset()
        self.deviation = 0.0
        self.updates: dict[str, Tensor] = {}  # of the computed units
        self._held = held
        self._streams: dict[str, Tensor] = {}  # the stream behind each unit
        self._known: frozenset[str] = frozenset()  # units whose streams an earlier trial computed

    def freezing(self, name: str, names: Sequence[str]) -> "_FrozenTrial":
        """A trial with one more unit frozen. Earlier units give the same result and are not computed again."""
        trial, before = _FrozenTrial(self._held), frozenset(names[: names.index(name)])
        trial.frozen, trial._known = self.frozen | {name}, before
        trial.updates = {unit: update for unit, update in self.updates.items() if unit in before}
        trial._streams = {unit: stream for unit, stream in self._streams.items() if unit in before}
        return trial

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        if unit in self._known:
            return self._streams[unit]
        if unit in self.frozen:
            after = h + self._held[unit]
        else:
            after, self.updates[unit] = computed(h, branch, gate, "update")
        self._streams[unit] = after
        return after


@torch.no_grad()
def _tried(network: Network, evaluation: RecordedEvaluation, trial: _FrozenTrial) -> _FrozenTrial:
    trial.deviation = relative(evaluation.again(network, trial), evaluation.output)
    return trial
