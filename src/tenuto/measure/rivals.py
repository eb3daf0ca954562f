"""The rivals of our schedules, as they were published, at the same seam: one frontier can measure all of them.

SkippedEvaluations   the network evaluated at every R-th step only, its output extrapolated in between
FirstBlock           all blocks but the first held while the first one's update hardly changes (ParaAttention)
TaylorSeer           every branch predicted by a Taylor series of finite differences (Liu et al.)
smooth_cache         a schedule from one calibrating run, each kind of layer by itself (SmoothCache, Liu et al.)
DeepCache            a UNet's deep features held as they are (Ma et al.); `deep_cache_schedule` holds its updates

Those that are schedules, and no more, are in `block_caches`; those that look at the input, in `input_aware`.

The executors follow no schedule: they decide while they run, skip by Python, and count what they computed. Live parts,
which are nobody's units, are computed at every evaluation of the network.
"""

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.executor import Executor
from tenuto.extrapolation import lagrange
from tenuto.models import Model
from tenuto.residual import Branch, plain
from tenuto.schedules import Hold, Schedule
from tenuto.units import Unit

WARMUP = 2  # steps that TaylorSeer computes before it predicts
MAX_SKIP = 3  # steps in a row that SmoothCache skips at most

Drifts = Mapping[str, NDArray[np.float64]]  # of each kind of unit: [distance − 1, step]; NaN beyond the last step


class Rival(Executor):
    """An executor without a schedule, which counts what it computed."""

    def __init__(self, network: Callable[..., Any]) -> None:
        super().__init__(network, None, mode="skip")
        self.computed: Counter[str] = Counter()  # steps of each unit, over all generations
        self.met: Counter[str] = Counter()  # the same, those at which it was held included

    def count(self, unit: str, computed: bool) -> None:
        self.met[unit] += 1
        self.computed[unit] += computed

    def forget(self) -> None:
        """Begin to count anew."""
        self.met.clear()
        self.computed.clear()

    @property
    def work(self) -> float:
        """Share of unit-steps computed so far."""
        if not self.met:
            raise UsageError("Nothing was generated yet, so there is no work to speak of.")
        return self.computed.total() / self.met.total()

    def flop_work(self, units: Iterable[Unit]) -> float:
        """The same share, each unit weighted by its cost."""
        if not self.met:
            raise UsageError("Nothing was generated yet, so there is no work to speak of.")
        flops = {unit.name: unit.flops for unit in units}
        done, all_of_it = (sum(flops[unit] * n for unit, n in count.items()) for count in (self.computed, self.met))
        return done / all_of_it


class Run:
    """One generation: it counts its steps, and is the network's residual."""

    def __init__(self, executor: Executor) -> None:
        self._network = executor.network
        self.step = -1

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self.step += 1
        return self._network(*inputs, **named, residual=self.residual)

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        raise NotImplementedError


# ----------------------------------------------------------------------------------------------- skipped evaluations


class SkippedEvaluations(Rival):
    """The whole network at every R-th step; in between its output, extrapolated through the last ones.

    every  R
    order  of the polynomial; 0 repeats the last output
    """

    def __init__(self, network: Callable[..., Any], every: int, order: int = 1) -> None:
        super().__init__(network)
        check_period(every)
        _check_order(order)
        self.every = every
        self.order = order

    def start(self) -> Any:
        return _Skipping(self)

    def flop_work(self, units: Iterable[Unit]) -> float:
        return self.work  # all units are computed together


class _Skipping(Run):
    def __init__(self, rival: SkippedEvaluations) -> None:
        super().__init__(rival)
        self._rival = rival
        self._outputs: deque[tuple[int, Tensor]] = deque(maxlen=rival.order + 1)  # newest first

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self.step += 1
        evaluated = self.step % self._rival.every == 0
        self._rival.count("network", evaluated)
        if evaluated:
            output: Tensor = self._network(*inputs, **named, residual=plain)
            self._outputs.appendleft((self.step, output))
            return output
        weights = lagrange([step for step, _ in self._outputs], self.step)
        newest = self._outputs[0][1]
        total = torch.zeros_like(newest, dtype=torch.promote_types(newest.dtype, torch.float32))
        for weight, (_, output) in zip(weights, self._outputs, strict=True):
            total.add_(output, alpha=weight)
        return total.to(newest.dtype)


# ------------------------------------------------------------------------------------------------- first-block cache


class FirstBlock(Rival):
    """The first block always computed, and the others only if its update changed since they were computed last.

    The change is mean |a − b| / mean |b|, with b the difference of the stream across the first block at the last full
    evaluation and a now's. Below the threshold the others' updates are held. The published code holds their sum, the
    difference of the stream across them. Held one by one they add up to the same, and long skips do not hinder it.

    One decision is made for the whole batch, so a sample depends on those it is drawn with; and the host waits for it
    at every step.

    first      the names of the first block's units, in the order they run: `first_block` finds them
    threshold  0 computes everything
    """

    def __init__(self, network: Callable[..., Any], first: Sequence[str], threshold: float) -> None:
        super().__init__(network)
        if not first:
            raise UsageError("The first block has at least one unit; none was named.")
        if not threshold >= 0:
            raise UsageError(f"The threshold is a relative change, not negative, and {threshold} is no such number.")
        self.first = tuple(first)
        self.threshold = threshold

    def start(self) -> Any:
        return _Watching(self)


class _Watching(Run):
    def __init__(self, rival: FirstBlock) -> None:
        super().__init__(rival)
        self._rival = rival
        self._before: Tensor | None = None  # the stream where the first block begins
        self._reference: Tensor | None = None  # its difference across the block at the last full evaluation
        self._full: bool | None = None  # whether this step is one; not known before the block's end
        self._held: dict[str, Tensor] = {}

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self._full = None
        return super().__call__(*inputs, **named)

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        first = self._rival.first
        if unit in first:
            if unit == first[0]:
                self._before = h
            self._rival.count(unit, True)
            after = plain(unit, h, branch, gate)
            if unit == first[-1]:
                assert self._before is not None
                self._decide(after - self._before)
            return after
        if self._full is None:
            raise UsageError(f"The network runs {unit} before the end of what was named as its first block.")
        self._rival.count(unit, self._full)
        if self._full:
            self._held[unit] = branch() if gate is None else gate() * branch()
        return h + self._held[unit]

    def _decide(self, difference: Tensor) -> None:
        self._full = True
        if self._reference is not None:
            moved = (difference - self._reference).float().abs().mean() / self._reference.float().abs().mean()
            self._full = not moved.item() < self._rival.threshold
        if self._full:
            self._reference = difference


def first_block(units: Sequence[str]) -> list[str]:
    """The names that share the first one's block, which is what its name says up to its last number.

    Of blocks.0.attn that is blocks.0; a UNet's first unit, down_blocks.0.resnets.0, is a block by itself.
    """
    if not units:
        raise UsageError("There are no units, and so no first block.")
    parts = units[0].split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    block = parts[: numbers[-1] + 1 if numbers else len(parts)]
    return [unit for unit in units if unit.split(".")[: len(block)] == block]


# -------------------------------------------------------------------------------------------------------- TaylorSeer


class TaylorSeer(Rival):
    """Every unit computed at the first steps and then at every N-th; in between its branch is Σ_i Δⁱ xⁱ / i!.

    x steps after the last refresh, with finite differences for derivatives: Δ⁰ is the branch at the last refresh, and
    Δⁱ the change of Δⁱ⁻¹ since the refresh before, divided by the steps between them. From the second order on this is
    not the polynomial through the last refreshes. What is predicted is the branch before its gate, as published.

    every   N
    order   the highest i; lower as long as there were too few refreshes
    warmup  how many first steps are computed; the first always is. Differences are taken from the last of them on
    """

    def __init__(self, network: Callable[..., Any], every: int, order: int, warmup: int = WARMUP) -> None:
        super().__init__(network)
        check_period(every)
        _check_order(order)
        if warmup < 0:
            raise UsageError(f"The number of first steps to compute cannot be negative, and {warmup} is.")
        self.every = every
        self.order = order
        self.warmup = max(1, warmup)

    def refreshes(self, step: int) -> bool:
        """Whether a step, counted from 0, computes all units."""
        return step < self.warmup or (step - self.warmup + 1) % self.every == 0

    def start(self) -> Any:
        return _Seeing(self)


class _Seeing(Run):
    def __init__(self, rival: TaylorSeer) -> None:
        super().__init__(rival)
        self._rival = rival
        self._last = 0  # refresh
        self._apart = 0  # steps since the last refresh, or between the last two if this step is one
        self._differences: dict[str, list[Tensor]] = {}  # Δ⁰, Δ¹, …

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self._apart = self.step + 1 - self._last
        if self._rival.refreshes(self.step + 1):
            self._last = self.step + 1
        return super().__call__(*inputs, **named)

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        refresh = self._last == self.step
        self._rival.count(unit, refresh)
        value = self._refresh(unit, branch()) if refresh else self._predict(unit)
        return h + (value if gate is None else gate() * value)

    def _refresh(self, unit: str, value: Tensor) -> Tensor:
        differences = [value]
        if self.step >= self._rival.warmup - 1:
            for before in self._differences.get(unit, [])[: self._rival.order]:
                differences.append((differences[-1] - before) / self._apart)
        self._differences[unit] = differences
        return value

    def _predict(self, unit: str) -> Tensor:
        value, *changes = self._differences[unit]
        for i, change in enumerate(changes, 1):
            value = value + change * (self._apart**i / math.factorial(i))
        return value


# ------------------------------------------------------------------------------------------------------- SmoothCache


def smooth_cache(
    model: Model,
    steps: int,
    threshold: float,
    calibrate: Callable[[Executor], object] | Drifts,
    *,
    max_skip: int = MAX_SKIP,
) -> Schedule:
    """SmoothCache's schedule: each kind of unit skips as many steps as its drift allows, and holds its branch.

    threshold  how far a branch may have drifted at the last step it is held over; 0 computes everything
    calibrate  runs a generation of so many steps with the executor it is given; or what `drifts` gave
    max_skip   how many steps in a row may be skipped
    """
    if not threshold >= 0:
        raise UsageError(f"The threshold is a relative error, not negative, and {threshold} is no such number.")
    return _smooth(model, _drifts(model, steps, calibrate, max_skip), threshold, max_skip)


def smooth_cache_at(
    model: Model,
    steps: int,
    budget: float,
    calibrate: Callable[[Executor], object] | Drifts,
    *,
    max_skip: int = MAX_SKIP,
) -> Schedule:
    """The same at the threshold whose budget is nearest to `budget`; of two as near, the lower. Calibrated once.

    A schedule changes only where the threshold passes a drift, and its budget need not fall with every one of them:
    all are tried.
    """
    if not 0 < budget <= 1:
        raise UsageError(f"A budget is a share of the work, above 0 and at most 1, not {budget}.")
    found = _drifts(model, steps, calibrate, max_skip)
    values = np.concatenate([drift[np.isfinite(drift)] for drift in found.values()])
    sizes = Counter(unit.kind for unit in model.units)

    def off(threshold: float) -> float:
        shares = {kind: smooth_row(drift, threshold).mean() for kind, drift in found.items()}
        return abs(sum(float(shares[kind]) * n for kind, n in sizes.items()) / len(model.units) - budget)

    thresholds = [0.0, *np.unique(values).tolist()]
    return _smooth(model, found, min(thresholds, key=lambda one: (round(off(one), 12), one)), max_skip)


def drifts(
    model: Model, steps: int, calibrate: Callable[[Executor], object], *, max_skip: int = MAX_SKIP
) -> dict[str, NDArray[np.float64]]:
    """One calibrating run: by how much the branches of each kind change within 1, 2, … steps, relative, on average.

    ‖F(s) − F(s + k)‖₁ / ‖F(s + k)‖₁ of the whole batch, averaged over the units of a kind: [k − 1, s].
    """
    mean = unit_drifts(model, steps, calibrate, max_skip=max_skip)
    kinds = np.array([unit.kind for unit in model.units])
    result = {str(kind): mean[kinds == kind].mean(axis=0) for kind in dict.fromkeys(kinds)}
    for drift in result.values():
        for k in range(max_skip):
            drift[k, max(0, steps - 1 - k) :] = np.nan
    return result


def unit_drifts(
    model: Model, steps: int, calibrate: Callable[[Executor], object], *, max_skip: int = MAX_SKIP
) -> NDArray[np.float64]:
    """The same for each unit by itself: [unit, k − 1, s], zero where there is no step s + k."""
    if steps < 1 or max_skip < 1:
        raise UsageError(f"There must be a step to take and one to skip, not {steps} and {max_skip}.")
    recording = _Recording(model, steps, max_skip)
    calibrate(recording)
    if not recording.runs or any(run.step + 1 != steps for run in recording.runs):
        taken = ", ".join(str(run.step + 1) for run in recording.runs) or "no"
        raise UsageError(f"The calibration was to take {steps} steps with the executor it was given, and took {taken}.")
    return recording.totals / len(recording.runs)


def smooth_row(drift: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    """Which steps are computed: after each, as many are skipped as leave the drift at the last of them in bounds.

    Only that last one is looked at, the furthest first, as in the published code; the last step is always computed.
    """
    max_skip, steps = drift.shape
    row = np.zeros(steps, dtype=bool)
    step = 0
    while step < steps:
        row[step] = True
        step += 1 + next((k for k in range(max_skip, 0, -1) if drift[k - 1, step] <= threshold), 0)
    row[-1] = True
    return row


def _drifts(
    model: Model, steps: int, calibrate: Callable[[Executor], object] | Drifts, max_skip: int
) -> Mapping[str, NDArray[np.float64]]:
    if not isinstance(calibrate, Mapping):
        return drifts(model, steps, calibrate, max_skip=max_skip)
    if set(calibrate) != {unit.kind for unit in model.units} or any(
        drift.shape[1] != steps or len(drift) < max_skip for drift in calibrate.values()
    ):
        raise UsageError(f"These drifts are not of {model.name} at {steps} steps and up to {max_skip} skipped ones.")
    return {kind: drift[:max_skip] for kind, drift in calibrate.items()}


def _smooth(model: Model, found: Drifts, threshold: float, max_skip: int) -> Schedule:
    rows = {kind: smooth_row(drift, threshold) for kind, drift in found.items()}
    active = np.array([rows[unit.kind] for unit in model.units])
    return schedule_for(model, active, "branch", {"name": "smooth_cache", "threshold": threshold, "max_skip": max_skip})


class _Recording(Executor):
    """Full inference that notes how far every branch is from what it was at the last steps."""

    def __init__(self, model: Model, steps: int, max_skip: int) -> None:
        super().__init__(model.network, None, mode="skip")
        self.rows = {unit.name: i for i, unit in enumerate(model.units)}
        self.totals = np.zeros((len(model.units), max_skip, steps))  # [unit, distance − 1, step], over all runs
        self.runs: list[_Recorded] = []

    def start(self) -> Any:
        self.runs.append(_Recorded(self))
        return self.runs[-1]


class _Recorded(Run):
    def __init__(self, recording: _Recording) -> None:
        super().__init__(recording)
        self._rows, self._totals = recording.rows, recording.totals
        self._last: dict[str, deque[Tensor]] = {}  # branches of the last steps, newest first

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        steps = self._totals.shape[2]
        if self.step + 1 >= steps:
            raise UsageError(f"The calibration was to take {steps} steps, and takes more.")
        output = super().__call__(*inputs, **named)
        if self.step + 1 == steps:
            self._last.clear()
        return output

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        value = branch()
        last = self._last.setdefault(unit, deque(maxlen=self._totals.shape[1]))
        size = value.float().abs().sum().clamp_min(torch.finfo(torch.float32).tiny)  # a branch may be zero
        for k, before in enumerate(last, 1):
            off = (before.float() - value.float()).abs().sum() / size
            self._totals[self._rows[unit], k - 1, self.step - k] += off.item()
        last.appendleft(value)
        return h + (value if gate is None else gate() * value)


# --------------------------------------------------------------------------------------------------------- DeepCache


class DeepCache(Rival):
    """A UNet computed whole at every N-th step; in between only its shallow part, on the deep features of then.

    As published, what is reused is the feature itself and not its units' updates: the stream behind a deep unit is
    what it was, whatever comes in.

    units   the UNet's, by name
    every   N
    depth   the skip branch up to which a UNet is shallow, from 0 (the published cache_branch_id): see `deep_cache`
    """

    def __init__(self, network: Callable[..., Any], units: Sequence[str], every: int, depth: int = 0) -> None:
        super().__init__(network)
        check_period(every)
        self.every = every
        self.shallow = shallow_units(units, depth)

    def start(self) -> Any:
        return _Deep(self)


class _Deep(Run):
    def __init__(self, rival: DeepCache) -> None:
        super().__init__(rival)
        self._rival = rival
        self._features: dict[str, Tensor] = {}  # the stream behind each deep unit

    def residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        shallow, refresh = unit in self._rival.shallow, self.step % self._rival.every == 0
        self._rival.count(unit, shallow or refresh)
        if not shallow and not refresh:
            return self._features[unit]
        after = plain(unit, h, branch, gate)
        if not shallow:
            self._features[unit] = after
        return after


def deep_cache(units: Sequence[str], steps: int, every: int, depth: int = 0) -> NDArray[np.bool_]:
    """[unit, step]: everything at every N-th step, and a UNet's shallow units at all of them.

    Skip branches are counted from the outermost, as published: branch 0 leads from the first convolution to the last
    layer of the last up block, branch 1 from the first layer of the first down block to the last but one, and so on.
    What is inside of branch `depth` is held. So at depth 0 the last layer of the last up block is computed and nothing
    else; each depth adds a layer on the way up, and that on the way down whose output the branch carries.
    """
    check_period(every)
    shallow = shallow_units(units, depth)
    return np.array([unit in shallow for unit in units])[:, None] | (np.arange(steps) % every == 0)[None, :]


def deep_cache_schedule(model: Model, steps: int, every: int, depth: int = 0) -> Schedule:
    """A schedule that computes the units DeepCache computes, and holds the others' updates.

    Held updates are added to the live stream, where DeepCache puts the features of then in its place: `DeepCache`,
    above, does that, and no schedule can.
    """
    active = deep_cache([unit.name for unit in model.units], steps, every, depth)
    return schedule_for(model, active, "update", {"name": "deep_cache", "every": every, "depth": depth})


def shallow_units(units: Sequence[str], depth: int) -> frozenset[str]:
    """The units of a UNet outside of skip branch `depth`: they are computed at every step."""
    places = {unit: _PLACE.match(unit) for unit in units}
    layers: dict[int, int] = {}  # of each up block
    for place in places.values():
        if place is not None and place["way"] == "up":
            block = int(place["block"])
            layers[block] = max(layers.get(block, 0), int(place["layer"]) + 1)
    if not layers:
        raise UsageError("DeepCache is for UNets, and these units are in no down and up blocks.")
    most = max(layers.values())  # layers of an up block, and branches that end in it: 3 in all published UNets
    if not 0 <= depth < len(layers) * most:
        raise UsageError(f"This UNet has the skip branches 0 to {len(layers) * most - 1}, and none of depth {depth}.")

    def is_shallow(place: re.Match[str] | None) -> bool:
        if place is None:
            return False  # in the middle
        block, layer = int(place["block"]), int(place["layer"])
        if place["way"] == "down":
            return block * most + layer < depth
        return (max(layers) - block) * most + layers[block] - 1 - layer <= depth

    return frozenset(unit for unit, place in places.items() if is_shallow(place))


_PLACE = re.compile(r"(?P<way>down|up)_blocks\.(?P<block>\d+)\.(?:resnets|attentions)\.(?P<layer>\d+)(?:\.|$)")


# ------------------------------------------------------------------------------------------------------------ shared


def schedule_for(model: Model, active: NDArray[np.bool_], hold: Hold, policy: dict[str, Any]) -> Schedule:
    """A schedule that a rival makes: what is held is held as it was."""
    return Schedule(
        units=tuple(unit.name for unit in model.units),
        active=active,
        flops=tuple(unit.flops for unit in model.units),
        reuse="hold",
        hold=hold,
        model=model.name,
        fingerprint=min(model.fingerprints),
        policy=policy,
    )


def check_period(every: int) -> None:
    if every < 1:
        raise UsageError(f"The period must be at least 1 step, not {every}.")


def _check_order(order: int) -> None:
    if order < 0:
        raise UsageError(f"An order cannot be negative, and {order} is.")
