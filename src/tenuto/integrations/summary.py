"""What a generation of an enabled pipeline computed and held, and what that took: for reading and for programs."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from tenuto.executor import Report
from tenuto.schedules import COMPUTED, HELD, Schedule
from tenuto.units import Unit

SOME = "+"  # the mark of a step that computes some of its units


@dataclass(frozen=True)
class Evaluation:
    """One call of a denoiser within a generation; its moments are seconds, or events on a GPU."""

    step: int
    denoiser: str
    schedule: Schedule | None  # None: in full
    place: int  # among the schedule's steps
    began: Any
    ended: Any

    @property
    def seconds(self) -> float:
        if isinstance(self.began, float):
            return float(self.ended - self.began)
        self.ended.synchronize()
        return float(self.began.elapsed_time(self.ended)) / 1000

    def computes(self, units: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[unit]"""
        return np.ones(units, bool) if self.schedule is None else self.schedule.active[:, self.place]


@dataclass(frozen=True)
class StepSummary:
    work: float  # share of its unit evaluations that were computed
    seconds: float


@dataclass(frozen=True)
class UnitSummary:
    computed: int  # times
    asked: int
    flops: float  # of one evaluation


@dataclass(frozen=True)
class Summary:
    pipeline: str
    denoisers: Mapping[str, str]  # name -> class
    steps: int  # of the last generation; 0 means there was none yet
    evaluations: int  # the pipeline asked for
    computed: int  # of those, all or some units
    work: float  # share of unit evaluations computed
    flop_work: float  # the same, each unit weighted by its cost
    seconds: float  # in the denoiser
    graphs: int
    graph_bytes: int
    capture_seconds: float
    cache_bytes: int  # of what is held
    given_up: str
    per_step: tuple[StepSummary, ...] = field(repr=False)
    per_unit: Mapping[str, UnitSummary] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        names = ", ".join(f"{name} ({kind})" for name, kind in self.denoisers.items())
        if not self.steps:
            return f"{self.pipeline}: {names} is enabled; nothing was generated yet."
        lines = [
            f"{self.pipeline}: {names}, {self.steps} steps",
            f"  computed  {self.computed} of {self.evaluations} evaluations: {self.work:.1%} of the unit-steps, "
            f"{self.flop_work:.1%} of the FLOPs",
            f"  seconds   {self.seconds:.3f} in the denoiser",
            f"  graphs    {self.graphs}, {self.graph_bytes:,} bytes, recorded in {self.capture_seconds:.2f} s",
            f"  held      {self.cache_bytes:,} bytes",
            f"  steps     {''.join(_mark(step.work) for step in self.per_step)}  "
            f"({COMPUTED} computed, {HELD} held, {SOME} some units)",
        ]
        shares = Counter((unit.computed, unit.asked) for unit in self.per_unit.values())
        for (computed, asked), count in sorted(shares.items(), reverse=True):
            lines.append(f"  units     {count} computed {computed} times of {asked}")
        return "\n".join([*lines, *([f"  given up  {self.given_up}"] if self.given_up else [])])


def _mark(work: float) -> str:
    return COMPUTED if work == 1 else HELD if work == 0 else SOME


def summarise(
    pipeline: str,
    units: Mapping[str, Sequence[Unit]],
    kinds: Mapping[str, str],
    steps: int,
    evaluations: Iterable[Evaluation],
    executors: Iterable[Report],
    lanes: Iterable[Report],
) -> Summary:
    """units, kinds: of each denoiser; executors: what ran; lanes: the same, once for each that it ran."""
    evaluations, executors = list(evaluations), list(executors)
    computed = {name: np.zeros(len(own), int) for name, own in units.items()}
    asked = Counter(one.denoiser for one in evaluations)
    cost = {name: np.array([unit.flops for unit in own]) for name, own in units.items()}
    done = [one.computes(len(units[one.denoiser])) for one in evaluations]
    for one, marks in zip(evaluations, done, strict=True):
        computed[one.denoiser] += marks
    per_step = []
    for step in range(max((one.step for one in evaluations), default=-1) + 1):
        here = [(one, marks) for one, marks in zip(evaluations, done, strict=True) if one.step == step]
        share = float(np.concatenate([marks for _, marks in here]).mean()) if here else 0.0
        per_step.append(StepSummary(share, sum(one.seconds for one, _ in here)))
    all_units = sum(len(units[one.denoiser]) for one in evaluations)
    all_flops = sum(float(cost[one.denoiser].sum()) for one in evaluations)
    prefix = {name: f"{name}." if len(units) > 1 else "" for name in units}
    return Summary(
        pipeline=pipeline,
        denoisers=dict(kinds),
        steps=steps,
        evaluations=len(evaluations),
        computed=sum(bool(marks.any()) for marks in done),
        work=sum(int(marks.sum()) for marks in done) / max(1, all_units),
        flop_work=sum(float(cost[one.denoiser] @ marks) for one, marks in zip(evaluations, done, strict=True))
        / (all_flops or 1.0),
        seconds=sum(step.seconds for step in per_step),
        graphs=sum(report.graphs for report in executors),
        graph_bytes=sum(report.graph_bytes for report in executors),
        capture_seconds=sum(report.capture_seconds for report in executors),
        cache_bytes=sum(report.cache_bytes for report in lanes),
        given_up="; ".join(dict.fromkeys(report.given_up for report in executors if report.given_up)),
        per_step=tuple(per_step),
        per_unit={
            f"{prefix[name]}{unit.name}": UnitSummary(int(count), asked[name], unit.flops)
            for name, own in units.items()
            for unit, count in zip(own, computed[name], strict=True)
        },
    )


def moment(on: torch.device | None) -> Any:
    """Now: on the host's clock, or as the GPU's queue reaches it, which waits for nothing."""
    if on is None or on.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(on))
    return event
