"""Runs a network under a schedule, eagerly: computes the units of each step's pattern and reuses the others.

    generation = Executor(network, schedule).start()
    for …:  output = generation(x, t, y)        # one network evaluation; the step counts itself

All state lives in the generation, so nothing can leak from one to the next, whatever happens in between.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from tenuto.errors import ScheduleError
from tenuto.residual import Branch, plain
from tenuto.schedules import Schedule


class Executor:
    def __init__(self, network: nn.Module, schedule: Schedule | None = None) -> None:
        """Without a schedule every unit is computed at every step."""
        self.network = network
        self.schedule = schedule

    def start(self) -> "Generation":
        """A new generation, at its first step and with nothing held."""
        return Generation(self.network, self.schedule)


class Generation:
    """One run through the steps of a schedule."""

    def __init__(self, network: nn.Module, schedule: Schedule | None) -> None:
        self._network = network
        self._holding = None if schedule is None else HoldingResidual(schedule)

    def __call__(self, *inputs: Any, **named: Any) -> Tensor:
        if self._holding is None:
            return self._network(*inputs, **named, residual=plain)
        self._holding.next_step()
        return self._network(*inputs, **named, residual=self._holding)


class HoldingResidual:
    """The seam under a schedule: a computed unit is remembered, a held one is added again to the current stream."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.step = -1
        self._row = {unit: i for i, unit in enumerate(schedule.units)}
        # The last `order + 1` refreshes of each unit, newest first: (step, update or branch).
        self._held: dict[str, deque[tuple[int, Tensor]]] = {}

    def next_step(self) -> None:
        self.step += 1
        if self.step >= self.schedule.steps:
            raise ScheduleError(
                f"The schedule has {self.schedule.steps} steps, but the sampler evaluates the network once more. "
                "Make the schedule for as many steps as the sampler takes."
            )

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        row = self._row.get(unit)
        if row is None:
            raise ScheduleError(f"The network has a unit {unit}, of which the schedule says nothing.")
        late_gate = gate if self.schedule.hold == "branch" else None
        if not self.schedule.active[row, self.step]:
            return self._reused(unit, h, late_gate)
        value = branch()
        if gate is not None and late_gate is None:
            value = gate() * value
        self._remember(unit, row, value)
        return h + (value if late_gate is None else late_gate() * value)

    def _remember(self, unit: str, row: int, value: Tensor) -> None:
        if not self.schedule.read_later[row, self.step]:
            self._held.pop(unit, None)
            return
        held = self._held.setdefault(unit, deque(maxlen=self.schedule.order + 1))
        held.appendleft((self.step, value))

    def _reused(self, unit: str, h: Tensor, gate: Branch | None) -> Tensor:
        refreshes = self._held[unit]
        (last, *others), weights = refreshes, extrapolation_weights([step for step, _ in refreshes], self.step)
        if not others:
            return h + (last[1] if gate is None else gate() * last[1])
        result = weights[0] * last[1]  # the one new buffer; on the CPU, fresh memory costs more than arithmetic
        for weight, (_, value) in zip(weights[1:], others, strict=True):
            result.add_(value, alpha=weight)
        if gate is not None:
            result.mul_(gate())
        return result.add_(h) if result.dtype == h.dtype else h + result


def extrapolation_weights(nodes: Sequence[int], at: int) -> list[float]:
    """Lagrange's weights: the value at `at` of the polynomial through the values at `nodes` is their weighted sum."""
    weights = []
    for i, node in enumerate(nodes):
        weight = 1.0
        for j, other in enumerate(nodes):
            if i != j:
                weight *= (at - other) / (node - other)
        weights.append(weight)
    return weights
