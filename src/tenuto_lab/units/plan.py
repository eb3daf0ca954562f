"""What a schedule means for one network, worked out before anything runs.

For every step, a plan says which units are computed, what is kept of them and in which buffer, and what is added in
place of held units. Neighbours that are held over the same steps are kept as one sum: the change of the residual stream
across them. A buffer is reused as soon as nobody reads it any more.

Steps that do the same things to the same buffers share one program, and one captured graph. What differs between such
steps (extrapolation weights, the slot that is overwritten) is data.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product, zip_longest
from math import prod
from typing import get_args

import numpy as np
import torch

from tenuto.errors import ScheduleError
from tenuto.runtime.prediction import polynomial_weights
from tenuto.scheduling.schedule import Keep, Predict, Schedule
from tenuto_lab.units.chain import Chain, Link
from tenuto_lab.units.lifetimes import is_of_lifetimes, with_neighbours_alike


@dataclass(frozen=True)
class Cell:
    """What is kept of neighbouring units: the sum of their updates, or one unit's branch before its gate."""

    first: int  # places in the chain
    last: int
    gated: bool
    planes: tuple[int, ...]  # one for each refresh that is remembered
    store: int  # the storage of its planes; there is one for each shape, stride and dtype

    @property
    def alone(self) -> bool:
        return self.first == self.last


@dataclass(frozen=True)
class Action:
    """What happens at one unit."""

    computed: bool
    opens: bool = False  # whether the sum of a cell of several units begins here
    keeps: Cell | None = None  # the kept cell that ends here
    adds: tuple[Cell, ...] = ()  # the cells added here, in place of the run of held units that ends here


Program = tuple[Action, ...]
Kind = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # of tensors: shape, strides, dtype


@dataclass(frozen=True)
class Moment:
    """One step: its program, and the numbers that go with it."""

    program: int
    weights: dict[Cell, tuple[float, ...]]  # of each plane, for each cell that is added
    slots: dict[Cell, int]  # which of a cell's planes is overwritten
    frees: tuple[tuple[int, int], ...]  # (storage, plane)s that nobody reads after this step


@dataclass(frozen=True)
class Storage:
    """Buffers of one shape."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    planes: int

    @property
    def plane_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Plan:
    chain: Chain
    programs: tuple[Program, ...]
    steps: tuple[Moment, ...]
    storages: tuple[Storage, ...]
    remembered: int  # how many refreshes of a cell are remembered at most

    @cached_property
    def places(self) -> dict[str, int]:
        return {link.unit: i for i, link in enumerate(self.chain)}

    @cached_property
    def held_before_gate(self) -> tuple[bool, ...]:
        """For each unit, whether its branch is kept before the gate."""
        gated = {cell.first for cell in self.cells if cell.gated}
        return tuple(i in gated for i in range(len(self.chain)))

    @property
    def cache_bytes(self) -> int:
        """The bytes of all buffers for held units."""
        return sum(storage.planes * storage.plane_bytes for storage in self.storages)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells that are ever kept."""
        return tuple(
            dict.fromkeys(action.keeps for program in self.programs for action in program if action.keeps is not None)
        )


def make_plan(schedule: Schedule, chain: Chain) -> Plan:
    return _Layout(schedule, chain).plan()


def fitting_plan(schedule: Schedule, chain: Chain, memory: int) -> tuple[Plan, str]:
    """A plan whose caches take at most `memory` bytes, and what was given up to get there; "" means nothing.

    What costs the least quality is tried first. Lower orders of extrapolation need fewer buffers. Updates kept after
    their gate can be summed with their neighbours' updates. If this is not enough and the schedule is one of lifetimes,
    neighbouring units get the same lifetime, in groups as small as possible.
    """
    degrees = get_args(Predict)[: schedule.order + 1][::-1]
    holds: tuple[Keep, ...] = ("branch", "update") if schedule.keep == "branch" else ("update",)
    least = None
    for keep, predict in product(holds, degrees):
        plan = make_plan(replace(schedule, predict=predict, keep=keep), chain)
        if plan.cache_bytes <= memory:
            lost = [f"predict {schedule.predict} became {predict}"] if predict != schedule.predict else []
            lost += (
                ["what is held is the update after the gate, not the branch before it"] if keep != schedule.keep else []
            )
            return plan, "; ".join(lost)
        least = min(plan.cache_bytes, least or plan.cache_bytes)
    grouped = len(schedule.units) // 2 + 1 if is_of_lifetimes(schedule) else 0
    for size in range(2, grouped):
        alike = replace(with_neighbours_alike(schedule, size), predict="constant", keep="update")
        plan = make_plan(alike, chain)
        if plan.cache_bytes <= memory:
            return plan, (
                f"{len(set(schedule.lifetimes))} lifetimes became {-(-len(schedule.units) // size)}, each that of "
                f"{size} neighbours: {alike.budget:.1%} of the unit-steps are computed, not {schedule.budget:.1%}"
            )
        least = min(plan.cache_bytes, least or plan.cache_bytes)
    raise ScheduleError(
        f"No way to run this schedule keeps less than {least:,} bytes, and {memory:,} are allowed. Compute more, keep "
        "the caches in the host's memory (offload), or draw fewer at a time."
    )


class _Layout:
    def __init__(self, schedule: Schedule, chain: Chain) -> None:
        rows = {unit: i for i, unit in enumerate(schedule.units)}
        if unknown := [link.unit for link in chain if link.unit not in rows]:
            raise ScheduleError(f"The network has a unit {unknown[0]} that the schedule does not name.")
        order = [rows[link.unit] for link in chain]
        self.chain = chain
        self.steps = schedule.steps
        self.order = schedule.order
        self.apart = schedule.rows != "none"  # each unit reads the stream before it, at least at some positions
        self.active = schedule.active[order]
        self.read_later = schedule.read_later[order]
        self.gated = [link.gated and schedule.keep == "branch" for link in chain]
        self.storage_of: dict[Kind, int] = {}
        self.count: list[int] = []  # planes of each storage so far
        self.free: list[list[int]] = []
        self.live: dict[tuple[int, int], Cell] = {}  # the cells kept now, by span
        self.usual: dict[tuple[int, int], Cell] = {}  # the last cell of each span
        self.nodes: dict[Cell, list[tuple[int, int]]] = {}  # the (step, slot)s each cell remembers, newest first
        self.next = self._next_computed()

    def plan(self) -> Plan:
        programs: dict[Program, int] = {}
        steps = []
        for step in range(self.steps):
            self._forget(step)
            kept = self._spans_kept(step)
            weights: dict[Cell, tuple[float, ...]] = {}
            added = {run[-1]: self._added(run, step, weights) for run in self._runs(step, kept)}
            cells, slots, superseded = self._keep(step, kept)
            frees = superseded + self._unread_after(step)
            opens = {first for first, last in kept if first != last}
            program = tuple(
                Action(bool(self.active[i, step]), i in opens, cells.get(i), added.get(i, ()))
                for i in range(len(self.chain))
            )
            steps.append(Moment(programs.setdefault(program, len(programs)), weights, slots, frees))
        storages = tuple(Storage(*kind, self.count[i]) for kind, i in self.storage_of.items())
        return Plan(self.chain, tuple(programs), tuple(steps), storages, self.order + 1)

    def _next_computed(self) -> list[list[int]]:
        """[unit][step]: the first later step at which the unit is computed, or the number of steps."""
        result = []
        for row in self.active:
            following, upcoming = [], self.steps
            for step in reversed(range(self.steps)):
                following.append(upcoming)
                upcoming = step if row[step] else upcoming
            result.append(following[::-1])
        return result

    # Which units are kept as one

    def _spans(self, members: Sequence[int], step: int) -> Iterator[tuple[int, int]]:
        """Maximal runs of neighbours among `members` that are kept as one sum from `step` on, as (first, last)."""
        first = None
        for i, following in zip_longest(members, members[1:]):
            first = i if first is None else first
            if following != i + 1 or not self._one(i, step):
                yield first, i
                first = None

    def _one(self, i: int, step: int) -> bool:
        """Whether a unit and the next are kept as one sum."""
        j = i + 1
        if self.apart or not self.chain[i].joined or self.gated[i] or self.gated[j]:
            return False
        if _kind(self.chain[i]) != _kind(self.chain[j]):
            return False
        if self.order:  # the two share extrapolation weights only if they are refreshed at the same steps
            return bool((self.active[i] == self.active[j]).all())
        return self.next[i][step] == self.next[j][step]

    def _spans_kept(self, step: int) -> list[tuple[int, int]]:
        """The spans kept at a step: those that contain a unit computed now and whose sums are read later."""
        if self.order:
            return list(self._spans(np.flatnonzero(self.read_later[:, step]).tolist(), step))
        if step + 1 == self.steps:
            return []
        spans = self._spans(np.flatnonzero(~self.active[:, step + 1]).tolist(), step + 1)
        return [(first, last) for first, last in spans if self.active[first : last + 1, step].any()]

    def _runs(self, step: int, kept: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
        """Runs of neighbours that are held at a step and added together. A run ends where the stream is needed."""
        cuts = {first for first, last in kept if first != last} | {last + 1 for first, last in kept if first != last}
        run: list[int] = []
        for i, link in enumerate(self.chain):
            if self.active[i, step]:
                continue
            run.append(i)
            j = i + 1
            goes_on = (
                not self.apart
                and link.joined
                and not self.active[j, step]
                and j not in cuts
                and self.gated[i] == self.gated[j]
                and _kind(link) == _kind(self.chain[j])
            )
            if not goes_on:
                yield run
                run = []

    def _added(self, run: Sequence[int], step: int, weights: dict[Cell, tuple[float, ...]]) -> tuple[Cell, ...]:
        cells = tuple(self.live[span] for span in self._spans(run, step))
        for cell in cells:
            nodes = self.nodes[cell]
            values = dict(
                zip((slot for _, slot in nodes), polynomial_weights([at for at, _ in nodes], step), strict=True)
            )
            weights[cell] = tuple(values.get(slot, 0.0) for slot in range(len(cell.planes)))
        return cells

    # Where cells are kept

    def _forget(self, step: int) -> None:
        """Free the buffers of cells that this step computes again, unless extrapolation reads older refreshes."""
        if self.order:
            return
        for span, cell in list(self.live.items()):
            if self.active[span[0], step]:
                self._release(span, cell)

    def _release(self, span: tuple[int, int], cell: Cell) -> None:
        del self.live[span]
        self.free[cell.store] += cell.planes

    def _keep(
        self, step: int, kept: Sequence[tuple[int, int]]
    ) -> tuple[dict[int, Cell], dict[Cell, int], tuple[tuple[int, int], ...]]:
        """The cell kept at the end of each span, the slot of each cell, and the buffers that are no longer used."""
        cells: dict[int, Cell] = {}
        slots: dict[Cell, int] = {}
        superseded: list[tuple[int, int]] = []
        for span in kept:
            cell = self.live.get(span)
            if cell is None:
                inner = [s for s in self.live if span[0] <= s[0] and s[1] <= span[1]]
                swallowed = [(s, self.live.pop(s)) for s in inner]
                # The span's own buffers may be overwritten, because they are read before the span ends.
                own = [plane for _, old in swallowed for plane in old.planes]
                cell, unused = self._allocate(span, own)
                superseded += [(cell.store, plane) for plane in unused]
                self.live[span] = self.usual[span] = cell
                self.nodes[cell] = []
            nodes = self.nodes[cell]
            slot = nodes[-1][1] if len(nodes) == len(cell.planes) else len(nodes)
            self.nodes[cell] = [(step, slot), *nodes[: len(cell.planes) - 1]]
            slots[cell] = slot
            cells[span[1]] = cell
        for store, plane in superseded:  # other cells may use them from the next step on
            self.free[store].append(plane)
        return cells, slots, tuple(superseded)

    def _allocate(self, span: tuple[int, int], own: list[int]) -> tuple[Cell, list[int]]:
        first, last = span
        store = self._storage(self.chain[first])
        wanted = self.order + 1
        usual = self.usual.get(span)
        available = own + self.free[store]
        if usual is not None and set(usual.planes) <= set(available):
            planes = list(usual.planes)
        else:
            planes = available[:wanted]
            while len(planes) < wanted:
                planes.append(self.count[store])
                self.count[store] += 1
        self.free[store] = [plane for plane in self.free[store] if plane not in planes]
        unused = [plane for plane in own if plane not in planes]
        return Cell(first, last, self.gated[first], tuple(planes), store), unused

    def _storage(self, link: Link) -> int:
        kind = _kind(link)
        if kind not in self.storage_of:
            self.storage_of[kind] = len(self.count)
            self.count.append(0)
            self.free.append([])
        return self.storage_of[kind]

    def _unread_after(self, step: int) -> tuple[tuple[int, int], ...]:
        """The buffers that no later step reads. Without extrapolation, `_forget` releases them at the next step."""
        frees = []
        for span, cell in list(self.live.items()):
            row = self.active[span[0]]
            unread = row[step + 1 :].all() if self.order else step + 1 == self.steps or row[step + 1]
            if unread:
                frees += [(cell.store, plane) for plane in cell.planes]
                if self.order:
                    self._release(span, cell)
        return tuple(frees)


def _kind(link: Link) -> Kind:
    return link.shape, link.stride, link.dtype
