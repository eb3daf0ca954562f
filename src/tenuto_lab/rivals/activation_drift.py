"""The paper's control that looks at the input while it runs: the units whose input moved most are computed.

d_{ℓ,s−1} = ‖h_{ℓ−1,s−1} − h_{ℓ−1,s−2}‖ / (‖h_{ℓ−1,s−1}‖ + 1e-8), where h is the stream to which the unit is added (its
shortcut, if it has one). Step s computes as many units as the static schedule does at step s; of equal drifts, the
first unit wins. The first step is full. At the second step no drift is known yet, so the first units are computed. Held
units keep their update.

On a GPU the graphs of the static schedule's patterns are the library, as in the paper: a pattern in the library is
replayed, another one runs eagerly. Norms, the choice and the look into the library are part of a step.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import ScheduleError, UsageError, first_line
from tenuto.runtime.compilation import computed
from tenuto.runtime.graphs import Graphs
from tenuto.runtime.private_torch import tree_flatten
from tenuto.runtime.residual import Branch
from tenuto.runtime.signature import Signature, hashable, signature_of
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.probing.trajectory import Network
from tenuto_lab.rivals.common import Rival, RivalGeneration

Pattern = frozenset[str]  # the units that a step computes


class ActivationDrift(Rival):
    """Causal activation drift, at the static schedule's number of units for each step.

    One decision is made for the whole batch, and the host waits for it at every step. With `halves`, every sample
    decides for itself: units are computed for the whole batch, and each sample takes its own computed or held update.
    That has the quality of single samples, not their time.

    schedule  the static schedule that says how many units to compute at each step, and whose patterns are the library
    halves    1: row i of a batch is sample i; 2: with guidance, rows i and i + B/2 are. None: one decision for all
    """

    def __init__(self, network: Network, schedule: Schedule, halves: int | None = None) -> None:
        super().__init__(network)
        if halves not in (None, 1, 2):
            raise UsageError(f"A sample has one row or two, not {halves}.")
        self.halves = halves
        self.units = schedule.units
        self.counts: list[int] = schedule.active.sum(axis=0).tolist()  # m_s
        self.library = {
            frozenset(unit for unit, on in zip(self.units, column, strict=True) if on) for column in schedule.active.T
        }
        self.graphs: Graphs | None = None  # made for the first inputs on a GPU
        self.without_graphs = False
        self.patterns: list[Pattern] = []  # of the steps so far
        self._states: dict[Signature, _Drifts] = {}  # graphs read and write them, so they stay where they are

    def start(self) -> Any:
        return _Drifting(self) if self.halves is None else _DriftingApart(self, self.halves)

    def forget(self) -> None:
        super().forget()
        self.patterns.clear()

    def release(self) -> None:
        super().release()
        self.graphs, self._states = None, {}

    def state_for(self, signature: Signature, leaves: Sequence[Any]) -> "_Drifts":
        device = next((leaf.device for leaf in leaves if isinstance(leaf, Tensor)), torch.device("cpu"))
        if device.type != "cuda" or self.without_graphs or not hashable(signature):
            return _Drifts(self.units, device)
        self.graphs = self.graphs or Graphs(device)
        return self._states.setdefault(signature, _Drifts(self.units, device))


class _Drifts:
    """What a generation keeps of every unit, in buffers that stay where they are."""

    def __init__(self, units: Sequence[str], device: torch.device) -> None:
        self.places = {unit: i for i, unit in enumerate(units)}
        self.streams: dict[str, Tensor] = {}  # the input of each unit at the last step
        self.updates: dict[str, Tensor] = {}
        with torch.inference_mode(False):
            self.drifts = torch.zeros(len(units), device=device)

    def residual(self, active: Pattern) -> Any:
        def one(unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
            if (before := self.streams.get(unit)) is not None:
                moved, size = (torch.linalg.vector_norm(x.float()) for x in (h - before, h))
                self.drifts[self.places[unit]].copy_(moved / (size + 1e-8))
            _put(self.streams, unit, h)
            if unit not in active:
                return h + self.updates[unit]
            after, update = computed(h, branch, gate, "update")
            _put(self.updates, unit, update)
            return after

        return one


def _put(buffers: dict[str, Tensor], unit: str, value: Tensor) -> None:
    known = buffers.get(unit)
    if known is None or known.shape != value.shape:
        with torch.inference_mode(False):
            buffers[unit] = known = torch.empty_like(value)
    known.copy_(value)


class _Drifting(RivalGeneration):
    """One decision for a whole batch."""

    def __init__(self, rival: ActivationDrift) -> None:
        super().__init__(rival)
        self._rival = rival
        self._state: _Drifts | None = None

    @torch.no_grad()
    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self.step += 1
        rival, count = self._rival, _count(self._rival.counts, self.step)
        leaves, spec = tree_flatten((inputs, named))
        signature = signature_of(leaves, spec)
        if self._state is None:
            self._state = rival.state_for(signature, leaves)
        state, active = self._state, self._chosen(self._state, count)
        for unit in rival.units:
            rival.count(unit, unit in active)
        rival.patterns.append(active)

        def evaluate(*inputs: Any, **named: Any) -> Any:
            return self._network(*inputs, **named, residual=state.residual(active))

        if rival.graphs is None or active not in rival.library:
            return evaluate(*inputs, **named)
        if rival.graphs.has(active, signature):
            return rival.graphs.replay(active, signature, leaves)
        inputs, named = rival.graphs.filled(signature, leaves, spec).arguments()
        output = evaluate(*inputs, **named)
        try:
            rival.graphs.capture(active, signature, evaluate, output)
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            rival.without_graphs, rival.graphs = True, None
            rival.warn(f"recording a graph failed ({first_line(error)})")
        return output

    def _chosen(self, state: _Drifts, count: int) -> Pattern:
        units = self._rival.units
        if self.step < 2:
            return frozenset(units[:count])
        return frozenset(units[i] for i in most_drifted(state.drifts.tolist(), count))


class _DriftingApart(RivalGeneration):
    """Every sample of a batch decides for itself."""

    def __init__(self, rival: ActivationDrift, halves: int) -> None:
        super().__init__(rival)
        self._rival, self._halves = rival, halves
        self._places = {unit: i for i, unit in enumerate(rival.units)}
        self._active: Tensor | None = None  # [unit, sample]
        self._streams: dict[str, Tensor] = {}
        self._drifts: dict[str, Tensor] = {}  # [sample]
        self._held: dict[str, Tensor] = {}

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        count = _count(self._rival.counts, self.step + 1)
        samples, units = len(inputs[0]) // self._halves, len(self._rival.units)
        order = torch.arange(units, device=inputs[0].device)[:, None].expand(units, samples)  # while no drift is known
        if self._drifts:
            drifts = torch.stack([self._drifts[unit] for unit in self._rival.units])
            order = torch.argsort(torch.argsort(-drifts, dim=0, stable=True), dim=0)  # the rank of each unit
        self._active = order < count
        for unit, computed_by in zip(self._rival.units, self._active.sum(1).tolist(), strict=True):
            self._rival.count(unit, computed_by, samples)
        return super().__call__(*inputs, **named)

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        if (before := self._streams.get(unit)) is not None:
            moved, size = (self._norms(x) for x in (h - before, h))
            self._drifts[unit] = moved / (size + 1e-8)
        self._streams[unit] = h
        assert self._active is not None
        _, update = computed(h, branch, gate, "update")
        if unit in self._held:
            rows = self._active[self._places[unit]].repeat(self._halves).reshape(-1, *[1] * (h.ndim - 1))
            update = torch.where(rows, update, self._held[unit])
        self._held[unit] = update
        return h + update

    def _norms(self, x: Tensor) -> Tensor:
        """The norm of each sample, over both of its rows: [sample]."""
        squares = x.float().flatten(1).square().sum(1)
        return squares.reshape(self._halves, -1).sum(0).sqrt()


def _count(counts: Sequence[int], step: int) -> int:
    if step >= len(counts):
        raise ScheduleError(f"The schedule has {len(counts)} steps, but the sampler evaluates the network once more.")
    return counts[step]


def most_drifted(drifts: Sequence[float], count: int) -> list[int]:
    """The indices of the `count` largest drifts; of equal drifts, the first."""
    return sorted(range(len(drifts)), key=lambda i: (-drifts[i], i))[:count]
