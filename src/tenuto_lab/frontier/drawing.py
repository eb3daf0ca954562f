"""The frontier of a model that draws: every point draws the same pictures, from the same noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.quality import psnr
from tenuto.runtime.executor import Executor
from tenuto.sampling.pictures import Sampling, Solver, decode, generate
from tenuto_lab.frontier.measurements import (
    HIGHEST,
    Frontier,
    Measurement,
    Save,
    cache_bytes,
    compared,
    mean_of,
    timed,
    times_as_fast,
    work_of,
)
from tenuto_lab.frontier.named_rivals import best_drawing, noise_of
from tenuto_lab.frontier.points import BUDGETS, DrawingPoint, Points, everything
from tenuto_lab.judging.judges import Judge, PictureJudge
from tenuto_lab.judging.statistics import Distance, mean_interval
from tenuto_lab.rivals import Drifts, Rival, drifts
from tenuto_lab.rivals.by_name import SOLVERS
from tenuto_lab.scoring.scores import Scores
from tenuto_lab.scoring.scoring_models import score

CONVERGED = (250, 500, 1000)  # numbers of steps; if the last two outputs agree, the last is the converged output
AGREE = 35.0  # dB from which on the last two outputs agree
CALIBRATION = 8  # samples
APART = 100_000  # distance between the noise seeds of two rounds
PAIRS = (
    ("tenuto", "plain refresh, linear"),
    ("tenuto", "every branch held"),
    ("tenuto", "every update held"),
    ("tenuto", "skipped evaluations"),
    ("tenuto", "TaylorSeer"),
    ("tenuto", "SmoothCache (calibrated)"),
    ("tenuto", "DeepCache"),
    ("tenuto", "fewer steps, ddim"),
    ("tenuto", "fewer steps, dpm++"),
    ("anchors, spectral", "anchors, random"),
    ("anchors, spectral within type", "anchors, random"),
    ("anchors, early", "anchors, random"),
    ("anchors, spectral", "plain refresh, linear"),
    ("allocated by score and cost", "plain refresh, linear"),
    ("placed by noise", "plain refresh, linear"),
)


@dataclass
class DrawingCase:
    """The requests, and the judge of the pictures."""

    model: Model
    steps: int
    wanted: Sequence[Any]  # classes or captions, the same for every seed
    seeds: Sequence[int] = (0, 1, 2)
    batch: int = 64
    judge: Judge | None = None
    labels: Sequence[int] | None = None  # the classes that the judge should see
    converged: int = 0  # how many samples of each seed to draw in very many steps
    budgets: Sequence[float] = BUDGETS
    rivals: bool = True
    rankings: bool = True
    ours_only: bool = False  # measure only the full run and the default
    named: Sequence[str] = ()  # rivals by name (tenuto_lab.rivals.NAMES), each at its best setting with hindsight
    vae: Any = None  # decodes latents

    def draw(self, executor: Executor, steps: int, solver: Solver, seed: int, count: int | None = None) -> Tensor:
        """Pictures, in [-1, 1]."""
        return self.shown(self.sample(executor, steps, solver, seed, count))

    def shown(self, samples: Tensor) -> Tensor:
        """The pictures of samples, which may be latents. Times are measured without this."""
        return (samples if self.vae is None else decode(samples.float(), self.vae)).clamp(-1, 1)

    def sample(self, executor: Executor, steps: int, solver: Solver, seed: int, count: int | None = None) -> Tensor:
        wanted, sampling = list(self.wanted)[:count], Sampling(steps=steps, solver=solver)
        by_class = self.model.architecture.asks_for == "class"
        return generate(
            self.model,
            wanted if by_class else None,
            captions=None if by_class else wanted,
            seed=seed * APART,
            executor=executor,
            sampling=sampling,
            batch=self.batch,
        )


def measure_pictures(
    case: DrawingCase, say: Callable[[str], object] = lambda text: None, save: Save = lambda frontier: None
) -> Frontier:
    """Measure every point of a case with all its seeds."""
    if not case.wanted:
        raise UsageError("Nothing was asked for, so there is nothing to measure.")
    known = _calibration(case) if case.rivals and not case.ours_only else None
    scores = score(case.model)
    points = Points(case.model, scores, case.steps, case.budgets, known, case.rivals, case.rankings, case.ours_only)
    measured = _DrawingRun(case, scores)
    if case.converged:
        measured.find_converged(say)
    case.sample(Executor(case.model.network), 2, "ddim", case.seeds[0], 1)  # a process's first evaluations take longer
    for point in points:
        executor = point.executor()
        if case.model.device.type == "cuda":  # warm-up: records the graphs for whole batches
            case.sample(executor, point.steps, point.solver, case.seeds[0], case.batch)
        if isinstance(executor, Rival):
            executor.forget()
        rows = [measured.row(point, executor, seed) for seed in case.seeds]
        executor.release()
        say(_told(case, point.policy, rows))
        save(measured.frontier)
    for name, budget in product(case.named, case.budgets):
        if rows := measured.named_rows(name, budget):
            say(_told(case, name, rows))
            save(measured.frontier)
    for name, reason in measured.frontier.unable.items():
        say(f"{case.model.name} T={case.steps}  {name:28} cannot run: {reason}")
    return measured.finished()


class _DrawingRun:
    """The measurements of one case so far."""

    def __init__(self, case: DrawingCase, scores: Scores) -> None:
        self.case = case
        self.scores = scores
        self.frontier = Frontier()
        self.truth: dict[int, Tensor] = {}  # converged pictures of each seed, if there are any
        self.full: dict[int, Tensor] = {}
        self.seconds: dict[int, float] = {}
        self.distances: dict[int, Distance] = {}  # Fréchet distance of the full run's pictures from real pictures
        self.likeness: dict[tuple[str, float], list[float]] = {}

    def find_converged(self, say: Callable[[str], object]) -> None:
        """Draw with very many steps. The pictures count as converged if the last two numbers of steps agree."""
        case, apart = self.case, self.frontier.converged
        runs: dict[int, dict[int, Tensor]] = {}
        noise = case.model.noise
        many = [steps for steps in CONVERGED if noise is None or steps + noise.offset <= noise.timesteps]
        for steps in many:
            executor = Executor(case.model.network, everything(self.scores, steps))
            runs[steps] = {seed: case.draw(executor, steps, "ddim", seed, case.converged) for seed in case.seeds}
        for fewer, more in pairwise(many):
            each = torch.cat([psnr(runs[fewer][seed], runs[more][seed]) for seed in case.seeds])
            apart[f"{fewer} and {more} steps"] = round(float(each.mean()), 2)
        say(f"{case.model.name}: outputs of {', '.join(f'{pair} agree to {dB} dB' for pair, dB in apart.items())}")
        if list(apart.values())[-1] >= AGREE:
            self.truth = runs[many[-1]]

    def row(self, point: DrawingPoint, executor: Executor, seed: int) -> Measurement:
        case = self.case
        samples, seconds = timed(lambda: case.sample(executor, point.steps, point.solver, seed), case.model.device)
        images = case.shown(samples)
        if point.kind == "full":
            self.full[seed], self.seconds[seed] = images, seconds
        row = Measurement(
            case.model.name,
            point.policy,
            point.kind,
            case.steps,
            point.steps,
            point.solver,
            point.budget,
            *work_of(executor, case.model.units, point.steps / case.steps),
            seed,
            len(images),
            seconds,
            self.seconds[seed],
            cache_bytes=cache_bytes(executor, min(case.batch, len(images))),
        )
        return self._measured(row, images)

    def named_rows(self, name: str, budget: float) -> list[Measurement]:
        """A rival by name, with as many evaluations as the budget allows; no rows if the rival cannot run."""
        case, drawings = self.case, []
        evaluations = max(2, round(budget * case.steps))
        for seed in case.seeds:
            noise = noise_of(case.model, seed * APART, len(case.wanted))
            nearness = self._nearness(name, seed)
            found = best_drawing(case.model, case.wanted, noise, case.steps, evaluations, name, nearness, case.batch)
            if isinstance(found, str):
                said = self.frontier.unable.get(name)
                self.frontier.unable[name] = found if said in (None, found) else f"{said}; {found}"
                return []
            drawings.append(found)
        return [
            self._measured(
                Measurement(
                    case.model.name,
                    name,
                    "rival",
                    case.steps,
                    evaluations if name in SOLVERS else case.steps,
                    drawn.setting,
                    budget,
                    drawn.evaluations / case.steps,
                    drawn.evaluations / case.steps,
                    seed,
                    len(case.wanted),
                    drawn.seconds,
                    self.seconds[seed],
                ),
                drawn.all_images,
            )
            for seed, drawn in zip(case.seeds, drawings, strict=True)
        ]

    def _nearness(self, name: str, seed: int) -> Callable[[Tensor], float]:
        """What the best setting is chosen by: solvers approach the converged pictures, caches the full run."""
        goal = self.truth[seed] if name in SOLVERS and seed in self.truth else self.full[seed]
        return lambda images: float(psnr(images[: len(goal)], goal).clamp(max=HIGHEST).mean())

    def _measured(self, row: Measurement, images: Tensor) -> Measurement:
        """Compare the images with the full run, the converged pictures and the judge's, and keep the row."""
        case, seed = self.case, row.seed
        alike = psnr(images, self.full[seed]).clamp(max=HIGHEST)
        self.likeness.setdefault((row.policy, row.budget), []).extend(alike.tolist())
        row.psnr, row.psnr_low, row.psnr_high = mean_interval(alike, 500)
        if seed in self.truth:
            truth = self.truth[seed]
            row.converged_psnr = float(psnr(images[: len(truth)], truth).mean())
        if case.judge is not None:
            self._judge(case.judge, row, images)
        self.frontier.rows.append(row)
        return row

    def _judge(self, judge: Judge, row: Measurement, images: Tensor) -> None:
        if isinstance(judge, PictureJudge):  # others take no perceptual distance
            row.lpips = float(judge.perceptual(images, self.full[row.seed]).mean())
        if self.case.labels is not None:
            row.agreement = float(judge.agrees(images, torch.tensor(self.case.labels)).float().mean())
        if (distance := judge.distance(images)) is not None:
            full = self.distances.setdefault(row.seed, distance)  # the full run comes first
            row.fid, row.fid_low, row.fid_high = distance.interval
            row.fid_delta, row.fid_delta_low, row.fid_delta_high = distance.beyond(full)

    def finished(self) -> Frontier:
        """The frontier, with the comparisons over all seeds."""
        case = self.case
        for (a, b), budget in product(PAIRS, case.budgets):
            if (a, budget) in self.likeness and (b, budget) in self.likeness:
                one, other = ((f"{name} at {budget:g}", self.likeness[name, budget]) for name in (a, b))
                self.frontier.comparisons.append(compared(case.model.name, case.steps, "psnr", one, other))
        return self.frontier


def _calibration(case: DrawingCase) -> Drifts:
    """SmoothCache's calibration. Its time is not counted."""
    some = list(case.wanted)[:CALIBRATION]
    few = DrawingCase(case.model, case.steps, some, batch=CALIBRATION, vae=case.vae)
    return drifts(case.model, case.steps, lambda executor: few.sample(executor, case.steps, "ddim", seed=99))


def _told(case: DrawingCase, policy: str, rows: Sequence[Measurement]) -> str:
    mean = partial(mean_of, rows)
    near = "    equal" if mean("psnr") >= HIGHEST else f"{mean('psnr'):6.2f} dB"
    fid = f"  ΔFID {mean('fid_delta'):+.2f}" if rows[0].fid_delta is not None else ""
    faster = times_as_fast((row.full_seconds for row in rows), (row.seconds for row in rows))
    return f"{case.model.name} T={case.steps}  {policy:28} work {mean('flop_work'):.3f}  {faster:5.2f}x  {near}{fid}"
