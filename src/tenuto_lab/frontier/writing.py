"""The frontier of a model that writes. Another model judges its continuations; problems have one right answer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.models import Model
from tenuto.runtime.executor import Executor
from tenuto.sampling.masked import MaskedSampling, generate_tokens, sampling_for
from tenuto.scheduling.making import make
from tenuto.scheduling.rewrite import rewrite
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.candidates.allocation import Ranking, ranked
from tenuto_lab.frontier.measurements import (
    Frontier,
    Kind,
    Measurement,
    Save,
    cache_bytes,
    compared,
    mean_of,
    timed,
    times_as_fast,
)
from tenuto_lab.frontier.points import LIFETIMES, everything
from tenuto_lab.judging.judges import Problem, TextJudge
from tenuto_lab.judging.statistics import mean_interval
from tenuto_lab.scoring.scores import Scores
from tenuto_lab.scoring.scoring_models import score
from tenuto_lab.units.lifetimes import lifetimes

BUDGETS = (0.8, 0.63, 0.5, 0.4, 0.3, 0.125)
HALVES: tuple[Ranking, ...] = ("spectral", "random", "early", "late")
CONTINUED, NEEDLE = "text", "needle"  # kinds of problems
HALVES_EVERY = 4  # steps between refreshes of the held half


@dataclass
class WritingCase:
    """The problems, and the judge of the texts. Each seed uses different problems."""

    model: Model
    steps: int  # network evaluations for a continuation
    problems: dict[str, list[Problem]]
    judge: TextJudge | None
    length: int = 128  # tokens of a continuation
    block_length: int = 32
    answer_length: int = 16  # tokens of an answer, and its number of evaluations
    count: int = 100  # problems of each kind for each seed
    seeds: Sequence[int] = (0, 1, 2)
    budgets: Sequence[float] = BUDGETS
    rivals: bool = True
    rankings: bool = True

    @property
    def blocks(self) -> int:
        return self.length // self.block_length

    @property
    def setting(self) -> str:
        return f"{self.blocks} blocks of {self.block_length}" if self.blocks > 1 else "one block"

    @property
    def continued(self) -> str:
        """The kind of problem whose prompts are continued freely."""
        return CONTINUED if CONTINUED in self.problems else next(iter(self.problems))

    @property
    def answered(self) -> dict[str, str]:
        """Column of the table -> kind of problem. The first kind beside the needle stands in the column arithmetic."""
        others = [kind for kind in self.problems if kind not in (CONTINUED, NEEDLE)]
        kinds = {NEEDLE: NEEDLE if NEEDLE in self.problems else None, "arithmetic": others[0] if others else None}
        return {column: kind for column, kind in kinds.items() if kind is not None}

    def some(self, kind: str, seed: int) -> list[Problem]:
        """A seed's share of the problems."""
        return share_of(self.problems[kind], seed, self.count)


@dataclass(frozen=True)
class WritingPoint:
    """One way of spending work: a schedule for continuations in blocks, and one for short answers in one block."""

    policy: str
    kind: Kind
    budget: float
    writing: Schedule
    answering: Schedule


def points(case: WritingCase, scores: Scores) -> Iterator[WritingPoint]:
    """The full run first."""
    blocks, answer = case.blocks, case.answer_length
    yield WritingPoint("full", "full", 1.0, everything(scores, case.steps), everything(scores, answer))
    for budget in case.budgets:
        ways: dict[str, tuple[Kind, dict[str, Any]]] = {
            "tenuto": ("ours", {}),
            "all units held, written positions computed": ("option", {"held": 1.0, "rows": "written"}),
            "middle units held, written positions computed": ("option", {"rows": "written"}),
            "all units held (the same as fewer steps)": ("option", {"held": 1.0, "rows": "none"}),
        }
        for name, (kind, options) in ways.items():
            writing = rewrite(scores, case.steps, budget=budget, blocks=blocks, **options)
            yield WritingPoint(name, kind, budget, writing, rewrite(scores, answer, budget=budget, **options))
        if case.rivals:
            fewer, shorter = max(blocks, blocks * round(budget * case.steps / blocks)), max(1, round(budget * answer))
            yield WritingPoint("fewer steps", "rival", budget, everything(scores, fewer), everything(scores, shorter))
    for ranking in HALVES if case.rankings else ():
        name, held = f"half held, {ranking} computed", _last_half(ranked(scores, ranking))
        writing, answering = (_half_held(scores, held, *shape) for shape in ((case.steps, blocks), (answer, 1)))
        yield WritingPoint(name, "option", writing.budget, writing, answering)
    for budget in LIFETIMES:
        writing, answering = (lifetimes(scores, steps, budget=budget) for steps in (case.steps, answer))
        yield WritingPoint("lifetimes (the paper)", "paper", budget, writing, answering)


def _last_half(order: list[int]) -> NDArray[np.bool_]:
    """[unit]: whether the unit is in the second half of a ranking."""
    held = np.zeros(len(order), dtype=bool)
    held[order[len(order) // 2 :]] = True
    return held


def _half_held(scores: Scores, held: NDArray[np.bool_], steps: int, blocks: int) -> Schedule:
    fresh = np.arange(steps) % (steps // blocks) % HALVES_EVERY == 0
    active = np.where(held[:, None], fresh, True)
    policy: dict[str, object] = {"name": "half held"}
    return make(scores, active, "constant", "update", policy, rows="written", fingerprint=scores.fingerprint)


def measure_texts(
    case: WritingCase, say: Callable[[str], object] = lambda text: None, save: Save = lambda frontier: None
) -> Frontier:
    """Measure every point of a case with all its seeds."""
    measured = _WritingRun(case)
    for point in points(case, score(case.model)):
        writing, answering = (Executor(case.model.network, s) for s in (point.writing, point.answering))
        rows = [measured.row(point, writing, answering, seed) for seed in case.seeds]
        writing.release()
        answering.release()
        say(_told(case, point, rows))
        save(measured.frontier)
    return measured.finished()


class _WritingRun:
    """The measurements of one case so far."""

    def __init__(self, case: WritingCase) -> None:
        self.case = case
        self.frontier = Frontier()
        self.full: dict[int, Tensor] = {}
        self.seconds: dict[int, float] = {}
        self.losses: dict[tuple[str, float], dict[int, NDArray[np.float64]]] = {}

    def row(self, point: WritingPoint, writing: Executor, answering: Executor, seed: int) -> Measurement:
        case = self.case
        prompts = [problem["prompt"] for problem in case.some(case.continued, seed)]
        options: dict[str, Any] = {"length": case.length, "block_length": case.block_length, "stop_at_eos": False}
        sampling = sampling_for(case.model, steps=point.writing.steps, **options)

        def write() -> Tensor:
            return generate_tokens(writing, prompts, sampling=sampling, batch=len(prompts))

        if seed == case.seeds[0] and (point.kind == "full" or case.model.device.type == "cuda"):
            write()  # warm-up: records the graphs; and a process's first evaluations take longer
        tokens, seconds = timed(write, case.model.device)
        if point.kind == "full":
            self.full[seed], self.seconds[seed] = tokens, seconds
        share = point.writing.steps / case.steps
        row = Measurement(
            case.model.name,
            point.policy,
            point.kind,
            case.steps,
            point.writing.steps,
            case.setting,
            point.budget,
            share * point.writing.budget,
            share * flop_share(case, point.writing, len(prompts[0])),
            seed,
            len(prompts),
            seconds,
            self.seconds[seed],
            cache_bytes=cache_bytes(writing, len(prompts)),
            same_tokens=float((tokens == self.full[seed]).double().mean()),
            distinct=float(np.mean([distinct(row) for row in tokens.tolist()])),
            **{column: _right(case, answering, kind, seed) for column, kind in case.answered.items()},
            task=case.answered.get("arithmetic"),
        )
        if case.judge is not None:
            written = torch.cat([torch.tensor(prompts), tokens], dim=1)
            self._judge(row, case.judge.nll(written, len(prompts[0])).double().cpu().numpy())
        self.frontier.rows.append(row)
        return row

    def _judge(self, row: Measurement, losses: NDArray[np.float64]) -> None:
        self.losses.setdefault((row.policy, row.budget), {})[row.seed] = losses
        row.nll = float(losses.mean())
        row.nll_delta, row.nll_delta_low, row.nll_delta_high = mean_interval(
            losses - self.losses["full", 1.0][row.seed]
        )

    def finished(self) -> Frontier:
        case = self.case
        for budget in case.budgets:
            names = ("tenuto", "fewer steps")
            if all((name, budget) in self.losses for name in names):
                one, other = (
                    (f"{name} at {budget:g}", np.concatenate(list(self.losses[name, budget].values())))
                    for name in names
                )
                self.frontier.comparisons.append(compared(case.model.name, case.steps, "nll", one, other))
        return self.frontier


def flop_share(case: WritingCase, schedule: Schedule, prompt: int) -> float:
    """FLOPs of the units, as a share of the same number of full steps. Positions computed in held units count."""
    config, names = case.model.config, [unit.name for unit in case.model.units]
    tokens, width, keys_width = prompt + case.length, config.d_model, config.n_kv_heads * config.head_dim
    attends = np.array([name.endswith("attn") for name in names])
    attention = 4 * tokens * width * (width + keys_width) + 4 * tokens**2 * width
    full = np.where(attends, attention, 6 * tokens * width * config.mlp_hidden_size)
    keys = np.where(attends, 4 * tokens * width * keys_width, 0)  # keys and values, for all positions
    keys = np.where(schedule.keep == "keys", 0, keys)  # unless the schedule keeps them
    partly = keys + (full - keys) * _rows(case, schedule) / tokens
    spent = np.where(schedule.active, full[:, None], partly[:, None] if schedule.rows != "none" else 0)
    return float(spent.sum() / (full.sum() * schedule.steps))


def _rows(case: WritingCase, schedule: Schedule) -> float:
    """How many positions are computed in held units at a step."""
    if schedule.rows in ("block", "generated"):
        wanted = case.block_length if schedule.rows == "block" else case.length
        return wanted + int(getattr(case.model.network, "shift", 0))  # `shift` more predict the first
    oldest = age = 0
    for full in schedule.full_steps:
        age = 0 if full else age + 1
        oldest = max(oldest, age)
    return oldest * case.length / schedule.steps


def distinct(tokens: list[int]) -> float:
    """The share of different pairs among all pairs of neighbouring tokens."""
    pairs = list(pairwise(tokens))
    return len(set(pairs)) / max(1, len(pairs))


def _right(case: WritingCase, executor: Executor, kind: str, seed: int) -> float:
    """The share of problems that are answered rightly."""
    assert executor.schedule is not None
    length = case.answer_length
    sampling = sampling_for(case.model, steps=executor.schedule.steps, length=length, block_length=length)
    return float(np.mean(solved(executor, case.some(kind, seed), sampling, case.model.config.eos_token_id)))


def solved(executor: Executor, posed: Sequence[Problem], sampling: MaskedSampling, end: int) -> list[float]:
    """For each problem, from 0 (wrong) to 1 (right), what its answer is worth."""
    written = generate_tokens(executor, [one["prompt"] for one in posed], sampling=sampling, batch=len(posed))
    return as_expected(written.tolist(), posed, end)


def as_expected(written: Sequence[Sequence[int]], posed: Sequence[Problem], end: int) -> list[float]:
    """By the problem's own metric. Without one, an answer is right if it is exactly the expected one and then ends."""
    return [_worth(list(row), one, end) for row, one in zip(written, posed, strict=True)]


def _worth(row: list[int], problem: Problem, end: int) -> float:
    if "metric" in problem:
        return problem["metric"](row[: row.index(end)] if end in row else row)
    answer = [*problem["answer"], end]
    return float(row[: len(answer)] == answer)


def share_of(problems: Sequence[Problem], seed: int, count: int) -> list[Problem]:
    """A seed's share of the problems. After the last problem the first comes again."""
    return [problems[(seed * count + i) % len(problems)] for i in range(count)]


def _told(case: WritingCase, point: WritingPoint, rows: Sequence[Measurement]) -> str:
    mean = partial(mean_of, rows)
    faster = times_as_fast((row.full_seconds for row in rows), (row.seconds for row in rows))
    right = "".join(f"  {kind} {mean(column):.3f}" for column, kind in case.answered.items())
    likely = "" if case.judge is None else f"  Δnll {mean('nll_delta'):+.3f}"
    return (
        f"{case.model.name}, {case.setting}  {point.policy:46} work {mean('work'):.3f} ({mean('flop_work'):.3f})  "
        f"{faster:5.2f}x{likely}  distinct {mean('distinct'):.2f}{right}"
    )
