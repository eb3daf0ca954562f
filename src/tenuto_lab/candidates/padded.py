"""One CUDA graph for all steps: it computes every unit, and selects the kept value where the schedule holds the unit.

    executor = PaddedExecutor(network, schedule)

The paper compares its jagged graphs with this. It saves launches, but no arithmetic.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.runtime.compilation import computed
from tenuto.runtime.executor import UNITS
from tenuto.runtime.positions import put_, take
from tenuto.runtime.prediction import polynomial_weights
from tenuto.runtime.residual import Branch, Residual
from tenuto.runtime.stages import Cells, Inputs
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.units.chain import Chain
from tenuto_lab.units.holding import allocate, overwrite
from tenuto_lab.units.plan import Storage
from tenuto_lab.units.unit_executor import UnitExecutor


class PaddedExecutor(UnitExecutor):
    """An executor whose graphs compute every unit at every step; the schedule must keep single units.

    Without a GPU there are no graphs: then held units are skipped, as in every executor.
    """

    def __init__(self, network: Callable[..., Any], schedule: Schedule, *, compiled: bool = False) -> None:
        if schedule.keep not in UNITS:
            raise UsageError(f"A padded graph holds single units, and this schedule keeps {schedule.keep!r}.")
        super().__init__(network, schedule, mode="jagged", compiled=compiled)

    def cells_for(self, kind: Inputs, device: torch.device) -> Cells:
        assert self.schedule is not None
        return Padded(self.schedule, self.planner.plan_for(kind).chain, device)


class Padded:
    """The kept values of every unit, in planes of its own, and the residual that selects from them."""

    def __init__(self, schedule: Schedule, chain: Chain, device: torch.device) -> None:
        self.late = schedule.keep == "branch"
        self.rows: Tensor | None = None  # positions that are computed even in held units
        self._place = {link.unit: i for i, link in enumerate(chain)}
        slots = schedule.order + 1
        # Each unit has its slots and one extra plane. A step that keeps nothing writes to the extra plane.
        with torch.inference_mode(False):
            self._planes = [allocate(Storage(link.shape, link.stride, link.dtype, slots + 1), device) for link in chain]
        rows = {unit: i for i, unit in enumerate(schedule.units)}
        active = torch.from_numpy(schedule.active.copy())[[rows[link.unit] for link in chain]].T  # [step, unit]
        weights, targets = torch.zeros(*active.shape, slots), torch.full(active.shape, slots)
        for i in range(len(chain)):
            nodes: list[int] = []  # steps of the refreshes so far
            for step in range(schedule.steps):
                if active[step, i]:
                    targets[step, i] = len(nodes) % slots
                    nodes.append(step)
                else:
                    last = range(len(nodes))[-slots:]
                    for k, weight in zip(last, polynomial_weights([nodes[k] for k in last], step), strict=True):
                        weights[step, i, k % slots] = weight
        with torch.inference_mode(False):
            self._all = tuple(table.clone().to(device) for table in (active, weights, targets))
            self._now = tuple(table[0].clone() for table in self._all)

    @property
    def bytes(self) -> int:
        return sum(planes.untyped_storage().nbytes() for planes in self._planes)

    def reset(self) -> None:
        for planes in self._planes:
            planes.zero_()

    def at(self, step: int) -> None:
        for now, table in zip(self._now, self._all, strict=True):
            now.copy_(table[step])

    def program(self, step: int) -> int:
        return 0  # all steps share one graph

    def residual(self, step: int, rows: Tensor | None) -> Residual:
        self.rows = rows
        return self

    def finish(self, residual: Residual) -> None:
        """Does nothing: every unit's value was already selected when the unit ran."""

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        place = self._place[unit]
        planes, (active, weights, targets) = self._planes[place], (table[place] for table in self._now)
        value = branch()
        if gate is not None and not self.late:
            value, gate = gate() * value, None
        kept = sum(weights[k] * planes[k] for k in range(len(weights)))
        chosen = torch.where(active, value, kept.to(value.dtype))  # type: ignore[union-attr]
        if self.rows is None:
            overwrite(planes, targets[None], value)
        else:
            planes[0].copy_(put_(chosen, self.rows, take(value, self.rows)))
        return computed(h, lambda: chosen, gate)[0]
