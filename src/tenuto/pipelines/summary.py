"""What a generation of an enabled pipeline computed and held, and what it took: as text and as data."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tenuto.deciding import FEW_STEPS
from tenuto.pipelines.streams import Streams
from tenuto.scheduling.refresh import LEAST
from tenuto.scheduling.schedule import COMPUTED, HELD

if TYPE_CHECKING:
    from tenuto.pipelines.denoiser import Denoiser
    from tenuto.pipelines.loop import Loop
    from tenuto.pipelines.request import Request

MORE_STEPS = 4  # for each evaluation
SOME = "+"  # the mark of a step that computes some of its units


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
    asked: str  # what `enable` was asked for, in words
    steps: int  # of the last generation; 0 means there was none yet
    taken: int  # how many of them were taken: fewer if the loop still runs, or was interrupted
    computed_steps: int  # how many of the steps computed anything
    evaluations: int  # that the pipeline requested
    computed: int  # how many of these computed all or some units
    work: float  # share of unit evaluations computed
    flop_work: float  # the same, each unit weighted by its cost
    keep: str  # what was kept; "" if everything was computed
    predict: str  # how it was predicted
    corrected: bool  # whether refreshes corrected the outputs predicted before them
    uncorrected_because: str  # if not, why
    in_full_because: str  # why everything was computed although less was requested; "" otherwise
    estimated: float | None  # the distance to the full run that is to be expected, in dB; None if it cannot be told
    advice: str  # a number of steps with which the same evaluations would serve better; "" if all is well
    too_few: bool  # whether more evaluations were needed for the quality that was asked for
    seconds: float  # in the denoiser
    seconds_saved: float  # estimated: what the steps that computed nothing would have taken
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
            held += f"; then nothing: {self.in_full_because}" if self.in_full_because else ""
        broken = f", only {self.taken} of them taken" if self.taken < self.steps else ""
        lines = [
            f"{self.pipeline}: {names}, {self.steps} steps of {self.scheduler}{broken}",
            f"  asked     {self.asked}",
            f"  computed  {self.computed_steps} steps: {self.computed} of {self.evaluations} evaluations",
            f"  held      {held}; {self.cache_bytes:,} bytes",
            f"  quality   {self._quality()}",
            f"  seconds   {self.seconds:.3f} in the denoiser, about {self.seconds_saved:.3f} saved",
            f"  graphs    {self.graphs}, {self.graph_bytes:,} bytes, recorded in {self.capture_seconds:.2f} s",
            f"  steps     {''.join(_mark(step.work) for step in self.per_step)}  "
            f"({COMPUTED} computed, {HELD} held{f', {SOME} some units' if self.per_unit else ''})",
        ]
        shares = Counter((unit.computed, unit.asked) for unit in self.per_unit.values())
        for (computed, asked), count in sorted(shares.items(), reverse=True):
            lines.append(f"  units     {count} computed {computed} times of {asked}")
        if self.per_unit:
            lines.append(f"  work      {self.work:.1%} of the unit-steps, {self.flop_work:.1%} of the FLOPs")
        lines += [f"  given up  {self.given_up}"] if self.given_up else []
        return "\n".join([*lines, *([f"  advice    {self.advice}"] if self.advice else [])])

    def _quality(self) -> str:
        if not self.keep:
            return "that of the full run"
        if self.estimated is None:
            return "cannot be estimated here"
        lacking = "; for the quality asked, more evaluations would have been needed" if self.too_few else ""
        return f"about {self.estimated:.0f} dB to the full run, estimated{lacking}"


def _mark(work: float) -> str:
    return COMPUTED if work == 1 else HELD if work == 0 else SOME


def _too_few_steps(steps: int, request: "Request") -> str:
    """Why all steps are evaluated: there are too few for what was asked. Empty if that is not so."""
    if request.evaluations is not None and request.quality is None and request.evaluations >= steps:
        return f"{request.asked} of {steps} steps {'was' if request.evaluations == 1 else 'were'} asked for"
    asked = (request.given, request.evaluations, request.quality, request.policy, *request.options)
    a_share = all(one is None for one in asked) and (request.budget or 0) < 1
    few = "1 step" if steps == 1 else f"{steps} steps"
    return f"with {few} there is nothing to leave out" if a_share and steps <= LEAST else ""


def _more_steps(loop: "Loop", request: "Request") -> str:
    """Steps cost next to nothing: if half of them or more are evaluated, more of them serve better.

    `python -m benchmarks.settings` shows how often. With fewer evaluations it depends on the scheduler.
    """
    asked = request.evaluations
    if asked is None or request.quality is not None or not FEW_STEPS <= asked < loop.steps <= 2 * asked:
        return ""
    more = MORE_STEPS * asked
    return f"{more} steps with {asked} evaluations take about as long, and usually come nearer to the converged result"


def summarise(pipeline: str, asked_for: str, denoisers: Sequence["Denoiser"], loop: "Loop | None") -> Summary:
    """The summary of the last generation."""
    evaluations = [] if loop is None else loop.evaluations
    called = {one.denoiser for one in evaluations}
    named = {one.name: one for one in denoisers if one.name in called or not called}
    recorded = [executor.report() for one in denoisers for executor in one.executors]
    done = [one.computes(len(named[one.denoiser].units)) for one in evaluations]
    paced = loop is not None and loop.pace is not None
    held = None
    if loop is not None and not all(marks.all() for marks in done):
        held = next((one for one in loop.followed if paced or not one.active.all()), None)
    streams = Streams() if loop is None else loop.streams
    estimated = None if held is None else streams.estimated
    costs = {name: np.array([unit.flops for unit in one.units] or [1.0]) for name, one in named.items()}
    computed = {name: np.zeros(len(cost), int) for name, cost in costs.items()}
    for one, marks in zip(evaluations, done, strict=True):
        computed[one.denoiser] += marks
    per_step = []
    for step in range(max((one.step for one in evaluations), default=-1) + 1):
        here = [(one, marks) for one, marks in zip(evaluations, done, strict=True) if one.step == step]
        share = float(np.concatenate([marks for _, marks in here]).mean()) if here else 0.0
        per_step.append(StepSummary(share, sum(one.seconds for one, _ in here)))
    full = [step.seconds for step in per_step if step.work == 1]
    typical = float(np.median(full)) if full else 0.0  # of a step that computes everything; the first one is slower
    flops = sum(float(costs[one.denoiser] @ marks) for one, marks in zip(evaluations, done, strict=True))
    all_flops = sum(float(costs[one.denoiser].sum()) for one in evaluations)
    asked = Counter(one.denoiser for one in evaluations)
    return Summary(
        pipeline=pipeline,
        denoisers={name: one.kind for name, one in named.items()},
        scheduler="" if loop is None else type(loop.scheduler).__name__,
        asked=asked_for,
        steps=0 if loop is None else loop.steps,
        taken=0 if loop is None else min(loop.taken, loop.steps),
        computed_steps=sum(step.work > 0 for step in per_step),
        evaluations=len(evaluations),
        computed=sum(bool(marks.any()) for marks in done),
        work=sum(int(marks.sum()) for marks in done) / max(1, sum(map(len, done))),
        flop_work=flops / (all_flops or 1.0),
        keep="" if held is None else held.keep,
        predict="" if held is None else held.predict,
        corrected=held is not None and streams.corrects,
        uncorrected_because=streams.uncorrected_because,
        in_full_because="" if loop is None else loop.in_full or _too_few_steps(loop.steps, denoisers[0].request),
        estimated=estimated,
        advice="" if loop is None or not streams.corrects else _more_steps(loop, denoisers[0].request),
        too_few=loop is not None and loop.pace is not None and loop.pace.missed(estimated),
        seconds=sum(step.seconds for step in per_step),
        seconds_saved=sum(max(0.0, typical - step.seconds) for step in per_step if step.work < 1),
        graphs=sum(report.graphs for report in recorded),
        graph_bytes=sum(report.graph_bytes for report in recorded),
        capture_seconds=sum(report.capture_seconds for report in recorded),
        cache_bytes=streams.most_bytes + sum(report.cache_bytes for report in recorded),
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
