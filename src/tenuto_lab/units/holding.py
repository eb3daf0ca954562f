"""The residuals that carry out a plan: what is kept where, and what is added in place of a held unit.

`Holding` computes only what a step's program says. If Python runs the network, kept values are in `References`. If
graphs run the network, kept values are in `Planes`: buffers that never move.
"""

from collections import deque
from collections.abc import Callable
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

from tenuto.errors import ScheduleError
from tenuto.runtime.compilation import computed
from tenuto.runtime.positions import put_
from tenuto.runtime.prediction import polynomial_weights
from tenuto.runtime.residual import Branch, Residual
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.units.kernels import add_held, add_held_planes
from tenuto_lab.units.plan import Action, Cell, Moment, Plan, Storage


class Cache(Protocol):
    """Where kept values are. A write changes one slot of a cell's planes; a read takes all of them."""

    def keep(self, cell: Cell, value: Tensor) -> None: ...

    def add(self, h: Tensor, cells: tuple[Cell, ...], gates: list[Tensor] | None) -> Tensor: ...

    def put(self, cell: Cell, rows: Tensor, values: Tensor) -> None: ...


class Holding:
    """The seam under a plan: computed units are kept; for held units, kept values are added to the current stream."""

    def __init__(self, plan: Plan, cache: Cache, moment: Moment, rows: Tensor | None = None) -> None:
        """rows: positions at which held units are computed nevertheless."""
        self.plan = plan
        self.cache = cache
        self.rows = rows
        self.program = plan.programs[moment.program]
        self._next = 0  # the place of the unit that comes next
        self._sum: Tensor | None = None  # of the updates since the first unit of the cell that is being kept
        self._summing = False
        self._gates: list[Tensor] = []  # of the held units that are not added yet

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        place = self.plan.places.get(unit)
        if place is None:
            raise ScheduleError(f"The network has a unit {unit} that the schedule does not name.")
        if place != self._next:
            raise ScheduleError(
                f"The network runs {unit} where {self._expected()} was expected: its units came in another order, or "
                "others of them, when the generation began."
            )
        self._next += 1
        action, link = self.program[place], self.plan.chain[place]
        if h.shape != link.shape:
            raise ScheduleError(
                f"The stream at {unit} changed from {list(link.shape)} to {list(h.shape)} in the middle of a "
                "generation, and what is held no longer fits it. Begin a new generation when shapes change."
            )
        self._summing |= action.opens
        if action.computed:
            alone = action.keeps if action.keeps is not None and action.keeps.alone else None
            of_update = self._summing or (alone is not None and not alone.gated)
            after, value = computed(h, branch, gate, "update" if of_update else "branch")
            if alone is not None:
                self.cache.keep(alone, value)
            if self._summing:
                self._add(value)
        else:
            after = self._held(h, branch, gate, action, place)
        if action.keeps is not None and not action.keeps.alone:
            assert self._sum is not None
            self.cache.keep(action.keeps, self._sum.to(h.dtype).expand_as(h))
            self._sum, self._summing = None, False
        return after

    def _held(self, h: Tensor, branch: Branch, gate: Branch | None, action: Action, place: int) -> Tensor:
        if gate is not None and self.plan.held_before_gate[place]:
            self._gates.append(gate())
        if not action.adds:
            return h
        if self.rows is not None:
            self.cache.put(action.adds[0], self.rows, branch(self.rows))
        gates, self._gates = self._gates or None, []
        if not self._summing:
            return self.cache.add(h, action.adds, gates)
        added = self.cache.add(torch.zeros_like(h), action.adds, gates)
        self._add(added)
        return h + added

    def _add(self, update: Tensor) -> None:
        """Add an update to the sum that is kept: in float32 at least, because otherwise every sum would be rounded.

        The stream after the units minus the stream before them would be the same sum. But in bfloat16 that difference
        is wrong by 2 to 17 %, because the stream is much larger than the updates.
        """
        wide = update.to(torch.promote_types(update.dtype, torch.float32))
        self._sum = wide if self._sum is None else self._sum + wide

    def finish(self) -> None:
        """End a step: check that the network ran all units."""
        if self._next < len(self.program):
            raise ScheduleError(f"The network did not run {self._expected()} this time, as it did when it began.")

    def _expected(self) -> str:
        return self.plan.chain[self._next].unit if self._next < len(self.program) else "no unit"


class Unplanned:
    """The seam without a plan, for networks that cannot be looked at beforehand: each unit is kept by itself."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.step = 0
        self.rows: Tensor | None = None  # positions at which held units are computed nevertheless
        self._row = {unit: i for i, unit in enumerate(schedule.units)}
        # The last `order + 1` refreshes of each unit, newest first: (step, update or branch).
        self._held: dict[str, deque[tuple[int, Tensor]]] = {}

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        if unit not in self._row:
            raise ScheduleError(f"The network has a unit {unit} that the schedule does not name.")
        row, late = self._row[unit], self.schedule.keep == "branch"
        if not self.schedule.active[row, self.step]:
            held = self._held[unit]
            if self.rows is not None:
                put_(held[0][1], self.rows, branch(self.rows))
            weights = polynomial_weights([step for step, _ in held], self.step)
            gates = [gate()] if late and gate is not None else None
            return add_held(h, [[value for _, value in held]], [weights], gates)
        after, value = computed(h, branch, gate, "branch" if late else "update")
        if self.schedule.read_later[row, self.step]:
            self._held.setdefault(unit, deque(maxlen=self.schedule.order + 1)).appendleft((self.step, value))
        else:
            self._held.pop(unit, None)
        return after


class References:
    """Kept values by reference, without copies. For running without graphs."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Tensor] = {}
        self._moment: Moment | None = None

    def at(self, moment: Moment) -> None:
        self._moment = moment

    def keep(self, cell: Cell, value: Tensor) -> None:
        assert self._moment is not None
        self._kept[cell.store, cell.planes[self._moment.slots[cell]]] = value

    def add(self, h: Tensor, cells: tuple[Cell, ...], gates: list[Tensor] | None) -> Tensor:
        assert self._moment is not None
        weights = [self._moment.weights[cell] for cell in cells]
        kept = [
            [
                self._kept.get((cell.store, plane), h) if factor == 0 else self._kept[cell.store, plane]
                for plane, factor in zip(cell.planes, factors, strict=True)
            ]
            for cell, factors in zip(cells, weights, strict=True)
        ]
        return add_held(h, kept, weights, gates)

    def put(self, cell: Cell, rows: Tensor, values: Tensor) -> None:
        put_(self._kept[cell.store, cell.planes[0]], rows, values)

    def forget(self, moment: Moment) -> None:
        """Free the values that nobody reads after this step."""
        for place in moment.frees:
            self._kept.pop(place, None)

    def __len__(self) -> int:
        return len(self._kept)


class UnitsKept:
    """What one generation keeps of units if Python runs the network."""

    def __init__(self, schedule: Schedule, plan: Plan | None) -> None:
        """plan: None if the network cannot be looked at beforehand; then each unit is kept by itself."""
        self._plan = plan
        self._kept = References()
        self._unplanned = Unplanned(schedule)

    def __len__(self) -> int:
        return len(self._kept)

    def run(self, step: int, network: Callable[..., Any], inputs: Any, named: Any, rows: Tensor | None) -> Any:
        if self._plan is None:
            self._unplanned.step, self._unplanned.rows = step, rows
            return network(*inputs, **named, residual=self._unplanned)
        moment = self._plan.steps[step]
        self._kept.at(moment)
        holding = Holding(self._plan, self._kept, moment, rows)
        output = network(*inputs, **named, residual=holding)
        holding.finish()
        self._kept.forget(moment)
        return output


class Planes:
    """What graphs need: kept values in buffers that never move, and the numbers of the current step."""

    def __init__(self, plan: Plan, device: torch.device, pinned: bool = False) -> None:
        """pinned: the buffers are in the host's memory; see offloading."""
        self.plan = plan
        with torch.inference_mode(False):  # so that they can be used inside and outside of inference mode
            self.storages = [allocate(storage, device, pinned) for storage in plan.storages]
        self._row = {cell: i for i, cell in enumerate(plan.cells)}
        slots, shape = plan.remembered, (len(plan.steps), max(len(self._row), 1))
        weights, targets = torch.zeros(*shape, slots), torch.zeros(shape, dtype=torch.long)
        for step, moment in enumerate(plan.steps):
            for cell, factors in moment.weights.items():
                weights[step, self._row[cell]] = torch.tensor(factors)
            for cell, slot in moment.slots.items():
                targets[step, self._row[cell]] = cell.planes[slot]
        with torch.inference_mode(False):
            self._all_weights, self._all_targets = weights.clone().to(device), targets.clone().to(device)
            # If only one refresh is remembered, its weight is always one, and `at` changes nothing.
            self.weights = torch.ones_like(self._all_weights[0])
            self.targets = self._all_targets[0].clone()
        self._indices: dict[tuple[Cell, ...], tuple[Tensor, Tensor]] = {}

    @property
    def bytes(self) -> int:
        """Bytes on the device."""
        return sum(storage.untyped_storage().nbytes() for storage in self.storages)

    def reset(self) -> None:
        """Set all planes to zero: a plane may be read with the weight zero before it is written, and 0 · NaN is NaN."""
        if self.plan.remembered > 1:
            for storage in self.storages:
                storage.zero_()

    def at(self, step: int) -> None:
        if self.plan.remembered > 1:  # otherwise every step's numbers are the same
            self.weights.copy_(self._all_weights[step])
            self.targets.copy_(self._all_targets[step])

    def program(self, step: int) -> int:
        return self.plan.steps[step].program

    def residual(self, step: int, rows: Tensor | None) -> Holding:
        return Holding(self.plan, self, self.plan.steps[step], rows)

    def finish(self, residual: Residual) -> None:
        assert isinstance(residual, Holding)
        residual.finish()

    def keep(self, cell: Cell, value: Tensor) -> None:
        storage = self.storages[cell.store]
        if len(cell.planes) == 1:
            storage[cell.planes[0]].copy_(value)
        else:
            row = self._row[cell]
            overwrite(storage, self.targets[row : row + 1], value)

    def put(self, cell: Cell, rows: Tensor, values: Tensor) -> None:
        put_(self.storages[cell.store][cell.planes[0]], rows, values)

    def add(self, h: Tensor, cells: tuple[Cell, ...], gates: list[Tensor] | None) -> Tensor:
        storage = self.storages[cells[0].store]
        if len(cells) == 1 and len(cells[0].planes) == 1:
            value = storage[cells[0].planes[0]]
            return h + value if gates is None else torch.addcmul(h, gates[0], value)
        if gates is not None and len({gate.shape for gate in gates}) > 1:
            for cell, gate in zip(cells, gates, strict=True):
                h = self.add(h, (cell,), [gate])
            return h
        if cells not in self._indices:  # made when the program is first run, before it is captured
            planes = torch.tensor([cell.planes for cell in cells], device=h.device)
            rows = torch.tensor([self._row[cell] for cell in cells], device=h.device)
            self._indices[cells] = planes, rows
        planes, rows = self._indices[cells]
        return add_held_planes(h, storage, planes, self.weights, rows, None if gates is None else torch.stack(gates))


def allocate(storage: Storage, device: torch.device, pinned: bool = False) -> Tensor:
    """[planes, *shape], each plane laid out as the stream is."""
    size = prod(storage.shape)
    count = storage.planes * size
    flat = (
        torch.zeros(count, dtype=storage.dtype, pin_memory=device.type == "cuda")
        if pinned
        else torch.zeros(count, dtype=storage.dtype, device=device)
    )
    return flat.as_strided((storage.planes, *storage.shape), (size, *storage.stride))


def overwrite(planes: Tensor, index: Tensor, value: Tensor) -> None:
    """planes[index] = value, with the index on the device. The value is cast and broadcast if necessary."""
    planes.index_copy_(0, index, value.to(planes.dtype).expand(planes.shape[1:])[None])
