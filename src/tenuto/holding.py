"""The residuals that carry out a plan: what is kept where, and what is added in place of a held unit.

`Holding` computes what a step's program says and nothing else. `Padded` computes everything and selects, so that one
program serves every step. `Outputs` is no residual: where the output is held, steps in between ask the network nothing.
"""

from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from tenuto.chain import Chain
from tenuto.compilation import computed
from tenuto.errors import ScheduleError, UsageError
from tenuto.extrapolation import extrapolation_weights, recipes
from tenuto.kernels import add_held, add_held_planes
from tenuto.plan import Cell, Moment, Plan, Storage
from tenuto.residual import Branch
from tenuto.rows import put_, take
from tenuto.schedules import Schedule


class Cache(Protocol):
    """Where kept values are. A cell's planes are written at one slot, and read all together."""

    def keep(self, cell: Cell, value: Tensor) -> None: ...

    def keep_difference(self, cell: Cell, after: Tensor, before: Tensor) -> None: ...

    def add(self, h: Tensor, cells: tuple[Cell, ...], gates: list[Tensor] | None) -> Tensor: ...

    def put(self, cell: Cell, rows: Tensor, values: Tensor) -> None: ...


class Holding:
    """The seam under a plan: a computed unit is kept, a held one is added again to the current stream."""

    def __init__(self, plan: Plan, cache: Cache, moment: Moment, rows: Tensor | None = None) -> None:
        """rows: positions at which held units are computed all the same."""
        self.plan = plan
        self.cache = cache
        self.rows = rows
        self.program = plan.programs[moment.program]
        self._next = 0  # the place of the unit that comes next
        self._before: Tensor | None = None  # the stream where the sum that is being kept begins
        self._gates: list[Tensor] = []  # of the held units that are not added yet

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        place = self.plan.places.get(unit)
        if place is None:
            raise ScheduleError(f"The network has a unit {unit}, of which the schedule says nothing.")
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
        if action.opens:
            self._before = h
        if action.computed:
            alone = action.keeps if action.keeps is not None and action.keeps.alone else None
            after, value = computed(h, branch, gate, "update" if alone is not None and not alone.gated else "branch")
            if alone is not None:
                self.cache.keep(alone, value)
        else:
            if gate is not None and self.plan.held_before_gate[place]:
                self._gates.append(gate())
            after = h
            if action.adds:
                if self.rows is not None:
                    self.cache.put(action.adds[0], self.rows, branch(self.rows))
                gates, self._gates = self._gates or None, []
                after = self.cache.add(h, action.adds, gates)
        if action.keeps is not None and not action.keeps.alone:
            assert self._before is not None
            self.cache.keep_difference(action.keeps, after, self._before)
            self._before = None
        return after

    def finish(self) -> None:
        """The step is over."""
        if self._next < len(self.program):
            raise ScheduleError(f"The network did not run {self._expected()} this time, as it did when it began.")

    def _expected(self) -> str:
        return self.plan.chain[self._next].unit if self._next < len(self.program) else "no unit"


class Unplanned:
    """The seam under a schedule alone: each unit kept by itself. For networks that cannot be looked at beforehand."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.step = 0
        self.rows: Tensor | None = None  # positions at which held units are computed all the same
        self._row = {unit: i for i, unit in enumerate(schedule.units)}
        # The last `order + 1` refreshes of each unit, newest first: (step, update or branch).
        self._held: dict[str, deque[tuple[int, Tensor]]] = {}

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        if unit not in self._row:
            raise ScheduleError(f"The network has a unit {unit}, of which the schedule says nothing.")
        row, late = self._row[unit], self.schedule.hold == "branch"
        if not self.schedule.active[row, self.step]:
            held = self._held[unit]
            if self.rows is not None:
                put_(held[0][1], self.rows, branch(self.rows))
            weights = extrapolation_weights([step for step, _ in held], self.step)
            gates = [gate()] if late and gate is not None else None
            return add_held(h, [[value for _, value in held]], [weights], gates)
        after, value = computed(h, branch, gate, "branch" if late else "update")
        if self.schedule.read_later[row, self.step]:
            self._held.setdefault(unit, deque(maxlen=self.schedule.order + 1)).appendleft((self.step, value))
        else:
            self._held.pop(unit, None)
        return after


class References:
    """Kept values as they are: nothing is copied. For running without graphs."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Tensor] = {}
        self._moment: Moment | None = None

    def at(self, moment: Moment) -> None:
        self._moment = moment

    def keep(self, cell: Cell, value: Tensor) -> None:
        assert self._moment is not None
        self._kept[cell.store, cell.planes[self._moment.slots[cell]]] = value

    def keep_difference(self, cell: Cell, after: Tensor, before: Tensor) -> None:
        self.keep(cell, after - before)

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
        """Give back what nobody reads after this step."""
        for place in moment.frees:
            self._kept.pop(place, None)

    def __len__(self) -> int:
        return len(self._kept)


class Planes:
    """Kept values in buffers that never move, and the numbers of the current step beside them: what graphs need."""

    def __init__(self, plan: Plan, device: torch.device, offload: bool = False) -> None:
        """offload: the buffers are in the host's pinned memory, and travel whenever they are read or written."""
        if offload and plan.remembered > 1:
            raise UsageError("Caches in the host's memory go with reuse 'hold' only, which keeps one value of each.")
        self.plan = plan
        self.offload = offload
        with torch.inference_mode(False):  # so that they may be used within it and without
            self.storages = [allocate(storage, device, offload) for storage in plan.storages]
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
            # Where one refresh is remembered its weight is always one, and `at` has nothing to change.
            self.weights = torch.ones_like(self._all_weights[0])
            self.targets = self._all_targets[0].clone()
        self._indices: dict[tuple[Cell, ...], tuple[Tensor, Tensor]] = {}

    @property
    def bytes(self) -> int:
        """On the device."""
        return 0 if self.offload else sum(storage.untyped_storage().nbytes() for storage in self.storages)

    def reset(self) -> None:
        """A plane that was not written yet may be read with the weight zero, and zero times anything finite is zero."""
        if self.plan.remembered > 1:
            for storage in self.storages:
                storage.zero_()

    def at(self, step: int) -> None:
        if self.plan.remembered > 1:  # otherwise every step's numbers are the same
            self.weights.copy_(self._all_weights[step])
            self.targets.copy_(self._all_targets[step])

    def keep(self, cell: Cell, value: Tensor) -> None:
        storage = self.storages[cell.store]
        if len(cell.planes) == 1:
            storage[cell.planes[0]].copy_(value, non_blocking=self.offload)
        else:
            row = self._row[cell]
            overwrite(storage, self.targets[row : row + 1], value)

    def put(self, cell: Cell, rows: Tensor, values: Tensor) -> None:
        put_(self.storages[cell.store][cell.planes[0]], rows, values)

    def keep_difference(self, cell: Cell, after: Tensor, before: Tensor) -> None:
        if len(cell.planes) == 1 and not self.offload:
            torch.sub(after, before, out=self.storages[cell.store][cell.planes[0]])
        else:
            self.keep(cell, after - before)

    def add(self, h: Tensor, cells: tuple[Cell, ...], gates: list[Tensor] | None) -> Tensor:
        storage = self.storages[cells[0].store]
        if self.offload:
            for i, cell in enumerate(cells):
                value = storage[cell.planes[0]].to(h.device, non_blocking=True)
                h = h + (value if gates is None else gates[i] * value)
            return h
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


def allocate(storage: Storage, device: torch.device, offload: bool = False) -> Tensor:
    """[planes, *shape], each plane laid out as the stream is."""
    size = prod(storage.shape)
    count = storage.planes * size
    flat = (
        torch.zeros(count, dtype=storage.dtype, pin_memory=device.type == "cuda")
        if offload
        else torch.zeros(count, dtype=storage.dtype, device=device)
    )
    return flat.as_strided((storage.planes, *storage.shape), (size, *storage.stride))


def overwrite(planes: Tensor, index: Tensor, value: Tensor) -> None:
    """planes[index] = value, with the index on the device; of whatever precision, and broadcast if need be."""
    planes.index_copy_(0, index, value.to(planes.dtype).expand(planes.shape[1:])[None])


class Padded:
    """Every unit computed at every step, and what is held selected instead: one program for all steps."""

    def __init__(self, schedule: Schedule, chain: Chain, device: torch.device) -> None:
        self.late = schedule.hold == "branch"
        self.rows: Tensor | None = None  # positions at which held units are computed all the same
        self._place = {link.unit: i for i, link in enumerate(chain)}
        slots = schedule.order + 1
        # A unit's slots, and one plane more, which is written where nothing is to be kept.
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
                    for k, weight in zip(last, extrapolation_weights([nodes[k] for k in last], step), strict=True):
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


class Outputs:
    """The last outputs of the network: extrapolated at steps that do not evaluate it, corrected at those that do."""

    def __init__(self, schedule: Schedule, course: Sequence[float] | None = None) -> None:
        """course  how much each step's output counts in the sample that comes out, where the sampler can say"""
        if course is not None and len(course) != schedule.steps:
            raise ScheduleError(f"A course of {len(course)} steps was given for a schedule of {schedule.steps}.")
        self._computed = schedule.full_steps.tolist()
        self._order = schedule.order
        self._recipes = recipes(self._computed, schedule.order, course if schedule.corrected else None)
        self._kept: dict[int, Any] = {}  # by step, the newest last

    def lose_course(self) -> None:
        """From now on nothing is corrected."""
        self._recipes = recipes(self._computed, self._order)

    @property
    def bytes(self) -> int:
        leaves, _ = tree_flatten(list(self._kept.values()))
        return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))

    def take(self, step: int, output: Any) -> Any:
        """Keep what was computed, and return what to give for it: both corrected for what was extrapolated since the
        last. They are no views of one another, for whoever is given an output may write into it."""
        for leaf in tree_flatten(output)[0]:
            if not isinstance(leaf, Tensor | None | bool | int | float | str):
                raise ScheduleError(
                    f"The network gives a {type(leaf).__name__}, which cannot be extrapolated; hold its units instead "
                    "of its output (hold='branch')."
                )
        recipe = self._recipes[step]
        if len(recipe.given) == 1:
            self._kept[step] = tree_map_only(Tensor, torch.clone, output)
            given = output
        else:
            self._kept[step] = output
            given, self._kept[step] = self._summed(recipe.given), self._summed(recipe.kept)
        while len(self._kept) > self._order + 1:
            del self._kept[next(iter(self._kept))]
        return given

    def at(self, step: int) -> Any:
        """The output of a step that computes none."""
        return self._summed(self._recipes[step].given)

    def _summed(self, amounts: dict[int, float]) -> Any:
        weights, trees = list(amounts.values()), [tree_flatten(self._kept[node]) for node in amounts]
        leaves = [
            _weighted(values, weights) if isinstance(values[0], Tensor) else values[0]
            for values in zip(*(leaves for leaves, _ in trees), strict=True)
        ]
        return tree_unflatten(leaves, trees[0][1])


def _weighted(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """In float32 at least: the weights are larger than one and of both signs."""
    wide = torch.promote_types(values[0].dtype, torch.float32)
    total = weights[0] * values[0].to(wide)
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total.add_(value.to(wide), alpha=weight)
    return total.to(values[0].dtype)
