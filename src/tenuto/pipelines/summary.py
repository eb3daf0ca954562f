"""What a generation of an enabled pipeline computed and held, and what it took: as text and as data."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tenuto.scheduling.schedule import COMPUTED, HELD, Schedule

if TYPE_CHECKING:
    from tenuto.pipelines.denoiser import Denoiser
    from tenuto.pipelines.engine import Loop

SOME = "+"  # the mark of a step that computes some of its units


@dataclass(frozen=True)
class Evaluation:
    """One call of a denoiser within a generation; `began` and `ended` are seconds, or events on a GPU."""

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
        """[unit]: whether the unit is computed. If the denoiser's units are not listed: one mark for all of them."""
        if self.schedule is None:
            return np.ones(max(1, units), bool)
        marks = self.schedule.active[:, self.place]
        return marks if units else marks[:1]


@dataclass(frozen=True)
class StepSummary:
    work: float  # share of unit evaluations computed
    seconds: float


@dataclass(frozen=True)
class CallSummary:
    """How often a denoiser was called (`asked`), and how often it computed anything (`computed`)."""

    computed: int
    asked: int


@dataclass(frozen=True)
class UnitSummary(CallSummary):
    flops: float  # of one evaluation


@dataclass(frozen=True)
class Summary:
    pipeline: str
    denoisers: Mapping[str, str]  # name -> class
    scheduler: str
    steps: int  # of the last generation; 0 means there was none yet
    evaluations: int  # that the pipeline requested
    computed: int  # how many of these computed all or some units
    work: float  # share of unit evaluations computed
    flop_work: float  # the same, each unit weighted by its cost
    keep: str  # what was kept; "" if everything was computed
    predict: str  # how it was predicted
    corrected: bool  # whether refreshes corrected the outputs predicted before them
    uncorrected_because: str  # if not, why
    in_full_because: str  # why everything was computed although less was requested; "" otherwise
    seconds: float  # in the denoiser
    graphs: int
    graph_bytes: int
    capture_seconds: float
    cache_bytes: int  # of what is kept
    given_up: str
    per_step: tuple[StepSummary, ...] = field(repr=False)
    per_denoiser: Mapping[str, CallSummary] = field(repr=False)
    per_unit: Mapping[str, UnitSummary] = field(repr=False)  # empty unless single units are held

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        names = ", ".join(f"{name} ({kind})" for name, kind in self.denoisers.items())
        if not self.steps:
            return f"{self.pipeline}: {names} is enabled; nothing was generated yet."
        held = f"nothing: {self.in_full_because}" if self.in_full_because else "nothing"
        if self.keep:
            why = f"not corrected: {self.uncorrected_because}" if self.uncorrected_because else "not corrected"
            held = f"the {self.keep}, predicted as {self.predict}, {'corrected' if self.corrected else why}"
        units = f": {self.work:.1%} of the unit-steps, {self.flop_work:.1%} of the FLOPs" if self.per_unit else ""
        lines = [
            f"{self.pipeline}: {names}, {self.steps} steps of {self.scheduler}",
            f"  computed  {self.computed} of {self.evaluations} evaluations{units}",
            f"  held      {held}; {self.cache_bytes:,} bytes",
            f"  seconds   {self.seconds:.3f} in the denoiser",
            f"  graphs    {self.graphs}, {self.graph_bytes:,} bytes, recorded in {self.capture_seconds:.2f} s",
            f"  steps     {''.join(_mark(step.work) for step in self.per_step)}  "
            f"({COMPUTED} computed, {HELD} held{f', {SOME} some units' if self.per_unit else ''})",
        ]
        shares = Counter((unit.computed, unit.asked) for unit in self.per_unit.values())
        for (computed, asked), count in sorted(shares.items(), reverse=True):
            lines.append(f"  units     {count} computed {computed} times of {asked}")
        return "\n".join([*lines, *([f"  given up  {self.given_up}"] if self.given_up else [])])


def _mark(work: float) -> str:
    return COMPUTED if work == 1 else HELD if work == 0 else SOME


def summarise(pipeline: str, denoisers: Sequence["Denoiser"], loop: "Loop | None") -> Summary:
    """The summary of the last generation."""
    named = {one.name: one for one in denoisers}
    evaluations = [] if loop is None else loop.evaluations
    lanes = {} if loop is None else {key: lane.schedule for key, lane in loop.lanes.items() if lane.schedule}
    reports = [named[name].executor(schedule, place).report() for (name, place), schedule in lanes.items()]
    recorded = [executor.report() for one in denoisers for executor in one.executors]
    held = next((schedule for schedule in lanes.values() if not schedule.active.all()), None)
    done = [one.computes(len(named[one.denoiser].units)) for one in evaluations]
    costs = {name: np.array([unit.flops for unit in one.units] or [1.0]) for name, one in named.items()}
    computed = {name: np.zeros(len(cost), int) for name, cost in costs.items()}
    for one, marks in zip(evaluations, done, strict=True):
        computed[one.denoiser] += marks
    per_step = []
    for step in range(max((one.step for one in evaluations), default=-1) + 1):
        here = [(one, marks) for one, marks in zip(evaluations, done, strict=True) if one.step == step]
        share = float(np.concatenate([marks for _, marks in here]).mean()) if here else 0.0
        per_step.append(StepSummary(share, sum(one.seconds for one, _ in here)))
    flops = sum(float(costs[one.denoiser] @ marks) for one, marks in zip(evaluations, done, strict=True))
    all_flops = sum(float(costs[one.denoiser].sum()) for one in evaluations)
    asked = Counter(one.denoiser for one in evaluations)
    return Summary(
        pipeline=pipeline,
        denoisers={name: one.kind for name, one in named.items()},
        scheduler="" if loop is None else type(loop.scheduler).__name__,
        steps=0 if loop is None else loop.steps,
        evaluations=len(evaluations),
        computed=sum(bool(marks.any()) for marks in done),
        work=sum(int(marks.sum()) for marks in done) / max(1, sum(map(len, done))),
        flop_work=flops / (all_flops or 1.0),
        keep="" if held is None else held.keep,
        predict="" if held is None else held.predict,
        corrected=any(report.corrected for report in reports) and held is not None,
        uncorrected_because=next((report.uncorrected_because for report in reports if report.uncorrected_because), ""),
        in_full_because="" if loop is None else loop.in_full,
        seconds=sum(step.seconds for step in per_step),
        graphs=sum(report.graphs for report in recorded),
        graph_bytes=sum(report.graph_bytes for report in recorded),
        capture_seconds=sum(report.capture_seconds for report in recorded),
        cache_bytes=sum(report.cache_bytes for report in reports),
        given_up="; ".join(dict.fromkeys(report.given_up for report in recorded if report.given_up)),
        per_step=tuple(per_step),
        per_denoiser={
            name: CallSummary(
                sum(bool(marks.any()) for one, marks in zip(evaluations, done, strict=True) if one.denoiser == name),
                asked[name],
            )
            for name in named
        },
        per_unit={
            f"{name}.{unit.name}" if len(named) > 1 else unit.name: UnitSummary(int(count), asked[name], unit.flops)
            for name, one in named.items()
            for unit, count in zip(one.units, computed[name], strict=False)
        },
    )


def moment(on: torch.device | None) -> Any:
    """The current time: seconds of the host's clock, or an event in the GPU's queue. The host does not wait for it."""
    if on is None or on.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(on))
    return event
