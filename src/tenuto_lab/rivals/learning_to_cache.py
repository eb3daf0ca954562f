"""Learning-to-Cache (Ma et al. 2024): a router, trained for each step, says which units the step computes.

Every second step computes everything. At the steps in between, a unit's branch is w · computed + (1 − w) · held, where
w ∈ (0, 1) is learned by gradient descent: the output should stay near the full network's, and the sum of all w should
be small. Weights of the network do not change. Then w is rounded: the units with the highest w are computed.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.models import Model
from tenuto.runtime.residual import Branch
from tenuto.scheduling.making import check_budget
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.probing.trajectory import Network, RecordedEvaluation, Sample, Trajectory, record
from tenuto_lab.rivals.common import schedule_for

LESSONS, RATE = 40, 0.2  # of each step's router
PENALTY = 0.1  # of the sum of w, where the output's error with every unit held counts as one for all units


def learning_to_cache(
    model: Model, steps: int, budget: float, sample: Sample, *, lessons: int = LESSONS, penalty: float = PENALTY
) -> Schedule:
    """The schedule at this budget, which is at least one half, because every second step is full.

    The published method rounds w at a threshold; here the budget sets the threshold, so that methods can be compared at
    equal work. The routers are trained on full trajectories of a few samples, not on the training set.

    sample  generates in `steps` steps with the executor it receives
    """
    check_budget(budget)
    weights = router_weights(model, record(model.network, sample)[0][:steps], lessons, penalty)
    active = np.ones((len(model.units), steps), dtype=bool)
    between = weights[:, 1::2]
    many = min(between.size, max(0, round(budget * active.size) - (active.size - between.size)))
    chosen = np.zeros(between.size, dtype=bool)
    chosen[np.argsort(-between, axis=None, kind="stable")[:many]] = True
    active[:, 1::2] = chosen.reshape(between.shape)
    policy = {"name": "learning_to_cache", "budget": budget, "lessons": lessons, "penalty": penalty}
    return schedule_for(model, active, "branch", policy)


def router_weights(model: Model, trajectory: Trajectory, lessons: int, penalty: float) -> NDArray[np.float64]:
    """[unit, step]: w of every unit at every second step; 1 at the full steps."""
    names = [unit.name for unit in model.units]
    found = np.ones((len(names), len(trajectory)))
    for step in range(1, len(trajectory), 2):
        held = _Noted()
        with torch.no_grad():
            trajectory[step - 1].again(model.network, held)
        found[:, step] = _trained(model.network, trajectory[step], names, held.branches, lessons, penalty)
    return found


def _trained(
    network: Network,
    evaluation: RecordedEvaluation,
    names: list[str],
    held: Mapping[str, Tensor],
    lessons: int,
    penalty: float,
) -> NDArray[np.float64]:
    device = evaluation.output.device
    logits = torch.zeros(len(names), device=device, requires_grad=True)
    places = {name: i for i, name in enumerate(names)}
    exact = evaluation.output.float()

    def error(weights: Tensor) -> Tensor:
        mixed = evaluation.again(network, _Mixed(held, weights, places)).float()
        return (mixed - exact).square().mean()

    with torch.no_grad():
        unit = error(torch.zeros_like(logits)).clamp(min=1e-12)
    optimizer = torch.optim.Adam([logits], lr=RATE)
    for _ in range(lessons):
        weights = logits.sigmoid()
        loss = error(weights) / unit + penalty * weights.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            logits.clamp_(-5, 5)  # as published
    learned: NDArray[np.float64] = logits.detach().sigmoid().double().cpu().numpy()
    return learned


class _Noted:
    """The residual of full inference. It notes every branch."""

    def __init__(self) -> None:
        self.branches: dict[str, Tensor] = {}

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        self.branches[unit] = branch()
        return h + (self.branches[unit] if gate is None else gate() * self.branches[unit])


class _Mixed:
    """Every branch is partly computed and partly held."""

    def __init__(self, held: Mapping[str, Tensor], weights: Tensor, places: Mapping[str, int]) -> None:
        self._held, self._weights, self._places = held, weights, places

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        weight: Any = self._weights[self._places[unit]].to(h.dtype)
        value = weight * branch() + (1 - weight) * self._held[unit]
        return h + (value if gate is None else gate() * value)
