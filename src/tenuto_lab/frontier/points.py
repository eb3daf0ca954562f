"""The ways of drawing that a frontier compares: our schedules, the paper's, and their rivals."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tenuto import deciding
from tenuto.models import Model
from tenuto.models.solvers import Solver
from tenuto.runtime.executor import Executor
from tenuto.scheduling.making import make
from tenuto.scheduling.refresh import refresh
from tenuto.scheduling.schedule import Keep, Schedule
from tenuto.scheduling.units import Subject
from tenuto_lab.candidates.allocation import Ranking, allocated, anchors
from tenuto_lab.frontier.measurements import Kind
from tenuto_lab.rivals import (
    DeepCache,
    Drifts,
    FirstBlock,
    SkippedEvaluations,
    TaylorSeer,
    first_block,
    smooth_cache_at,
)
from tenuto_lab.scoring.scores import Scores
from tenuto_lab.units.lifetimes import lifetimes

BUDGETS = (0.5, 0.34, 0.25, 0.2, 0.13)
RANKED_AT = 0.25  # the budget at which rankings and placements are compared
RANKINGS: tuple[Ranking, ...] = ("spectral", "spectral within type", "random", "early", "late")
LIFETIMES = (0.35, 0.57)
HOLDS: tuple[Keep, ...] = ("branch", "update")  # kept for each unit; the default keeps only the output
FIRST_BLOCK = (0.02, 0.05, 0.1, 0.2)  # thresholds; the work depends on the input
CALIBRATED = 0.25  # lowest budget of SmoothCache, because it never skips more than three steps


@dataclass(frozen=True)
class DrawingPoint:
    """One way of spending work."""

    policy: str
    kind: Kind
    steps: int
    executor: Callable[[], Executor]
    budget: float  # requested share of the full run's unit-steps
    solver: Solver = "ddim"
    schedule: Schedule | None = None


@dataclass(frozen=True)
class Points:
    """All points of one model at one number of steps."""

    model: Model
    scores: Scores
    steps: int
    budgets: Sequence[float] = BUDGETS
    drifts: Drifts | None = None  # from SmoothCache's calibration; if None, SmoothCache is left out
    rivals: bool = True
    rankings: bool = True
    ours_only: bool = False

    def __iter__(self) -> Iterator[DrawingPoint]:
        """The full run first."""
        yield self._scheduled("full", "full", everything(self.scores, self.steps, keep="output"), 1.0)
        if self.ours_only:
            for budget in self.budgets:
                yield next(self._ours(budget))
            return
        for budget in self.budgets:
            yield from self._ours(budget)
            if self.rivals:
                yield from self._rivals(budget)
        if self.rankings:
            yield from self._ranked()
        for budget in LIFETIMES:
            paper = lifetimes(self.scores, self.steps, budget=budget)
            yield self._scheduled("lifetimes (the paper)", "paper", paper, budget)
        if self.rivals:
            yield from self._dynamic()

    def _ours(self, budget: float) -> Iterator[DrawingPoint]:
        model, steps = self.model, self.steps
        yield self._scheduled("tenuto", "ours", deciding.schedule(model, steps, budget=budget), budget)
        for keep in HOLDS:
            each = deciding.schedule(model, steps, budget=budget, keep=keep, predict="quadratic")
            yield self._scheduled(f"every {keep} held", "option", each, budget)
        yield self._scheduled("plain refresh, linear", "option", plain_refresh(self.scores, steps, budget), budget)
        half = steps // 2
        if 2 * budget < 1 and half >= 10:
            composed = deciding.schedule(model, half, budget=2 * budget)
            yield self._scheduled("tenuto on half the steps", "option", composed, budget)

    def _rivals(self, budget: float) -> Iterator[DrawingPoint]:
        every, fewer = period(budget), max(2, round(budget * self.steps))
        full = everything(self.scores, fewer, keep="output")
        solvers: tuple[Solver, ...] = ("ddim", "dpm++")
        for solver in solvers:
            yield self._scheduled(f"fewer steps, {solver}", "rival", full, budget, solver)
        yield self._rival("skipped evaluations", budget, lambda: SkippedEvaluations(self.model.network, every, 2))
        yield self._rival("TaylorSeer", budget, lambda: TaylorSeer(self.model.network, every, 2))
        if any(unit.name.startswith("down_blocks") for unit in self.model.units):
            names = [unit.name for unit in self.model.units]
            yield self._rival("DeepCache", budget, lambda: DeepCache(self.model.network, names, every))
        if self.drifts is not None and budget >= CALIBRATED:
            smooth = smooth_cache_at(self.model, self.steps, budget, self.drifts)
            yield self._scheduled("SmoothCache (calibrated)", "rival", smooth, budget)

    def _ranked(self) -> Iterator[DrawingPoint]:
        """Rankings and placements at one budget. All keep branches and extrapolate them in the same way."""
        scores, steps, budget = self.scores, self.steps, RANKED_AT
        for ranking in RANKINGS:
            schedule = anchors(scores, steps, budget=budget, ranking=ranking)
            yield self._scheduled(f"anchors, {ranking}", "option", schedule, budget)
        yield self._scheduled("allocated by score and cost", "option", allocated(scores, steps, budget=budget), budget)

    def _dynamic(self) -> Iterator[DrawingPoint]:
        first = first_block([unit.name for unit in self.model.units])
        for threshold in FIRST_BLOCK:
            name = f"first block, threshold {threshold:g}"
            yield DrawingPoint(name, "rival", self.steps, _first_block(self.model, first, threshold), 0.0)

    def _scheduled(
        self, policy: str, kind: Kind, schedule: Schedule, budget: float, solver: Solver = "ddim"
    ) -> DrawingPoint:
        def executor() -> Executor:
            return Executor(self.model.network, schedule)

        return DrawingPoint(policy, kind, schedule.steps, executor, budget, solver, schedule)

    def _rival(self, policy: str, budget: float, executor: Callable[[], Executor]) -> DrawingPoint:
        return DrawingPoint(policy, "rival", self.steps, executor, budget)


def _first_block(model: Model, first: list[str], threshold: float) -> Callable[[], Executor]:
    return lambda: FirstBlock(model.network, first, threshold)


def period(budget: float) -> int:
    return max(1, round(1 / budget))


def plain_refresh(subject: Subject, steps: int, budget: float) -> Schedule:
    """What others did before: compute everything at every R-th step, and extrapolate branches linearly."""
    return refresh(subject, steps, every=period(budget), predict="linear", keep="branch")


def everything(subject: Subject, steps: int, keep: Keep = "update") -> Schedule:
    """Every unit computed at every step.

    keep  output: the network runs as it is. update: single units run one by one, as in schedules that hold some of them
    """
    active = np.ones((len(subject.units), steps), dtype=bool)
    return make(subject, active, "constant", keep, {"name": "everything"})
