"""Measures one network at one guidance: how near every way comes to two full runs, and what it does to the distance.

Nearness is measured on few samples, with every setting of every rival. The Fréchet distance needs many samples, so of
a rival with settings only one is drawn for it: the setting that came nearest to what the rival aims at.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from benchmarks.scaling.drawing import Network, Requests
from benchmarks.scaling.ways import FEWER, MANY, MANY_STEPS, OURS, SOLVER, STEPS, Way, paper, rivals
from tenuto.quality import psnr
from tenuto_lab.frontier.measurements import HIGHEST
from tenuto_lab.judging.judges import PictureJudge, picture_judge
from tenuto_lab.judging.statistics import Distance, mean_interval
from tenuto_lab.scoring.scoring_models import score

BUDGETS = (0.34, 0.25, 0.2, 0.13)
CONVERGED = 500  # steps
RESAMPLES = 100  # of a Fréchet distance
GOALS = ("full", "converged")
Say = Callable[[str], object]


class Near:
    """The best that each way reached so far, for each goal."""

    def __init__(self, goals: Mapping[str, Tensor]) -> None:
        self.goals = goals
        self.best: dict[str, dict[str, tuple[Tensor, Way]]] = {}  # way -> goal -> dB of each sample, and the setting

    def take(self, way: Way, pictures: Tensor) -> None:
        if not bool(torch.isfinite(pictures).all()):
            return
        for goal, reference in self.goals.items():
            found = psnr(pictures, reference).clamp(max=HIGHEST).cpu()
            known = self.best.setdefault(way.name, {})
            if goal not in known or float(found.mean()) > float(known[goal][0].mean()):
                known[goal] = found, way

    def row(self, name: str) -> dict[str, Any]:
        row: dict[str, Any] = {"way": name}
        for goal, (found, way) in self.best.get(name, {}).items():
            row[goal] = dict(zip(("dB", "low", "high"), mean_interval(found), strict=True))
            row[goal] |= {"setting": way.setting, "each": [round(value, 3) for value in found.tolist()]}
            ours = self.best.get(OURS, {}).get(goal)
            if ours is not None and name != OURS:
                row[goal]["ours_less"] = list(mean_interval(ours[0] - found))
        return row

    def aimed(self, name: str) -> Way:
        """The setting for the distance: solvers approach the converged pictures, everything else the full run."""
        return self.best[name]["converged" if name in (FEWER, SOLVER) else "full"][1]


class Judged:
    """The Fréchet distance and the class accuracy of sets of pictures; distances are computed in the background."""

    def __init__(self, judge: PictureJudge, asked: Requests, pool: ThreadPoolExecutor) -> None:
        self.judge, self.asked, self.pool = judge, asked, pool
        self.found: dict[Any, tuple[Future[Distance], float]] = {}

    def take(self, key: Any, latents: Tensor) -> None:
        pictures = self.asked.shown(latents).nan_to_num(0)
        features, real = self.judge.features(pictures).cpu(), self.judge.statistics
        assert real is not None
        right = self.judge.agrees(pictures, self.asked.labels.cpu()).float().mean()
        self.found[key] = self.pool.submit(Distance.of, features, real.to("cpu"), RESAMPLES), float(right)

    def row(self, key: Any, full: Any) -> dict[str, Any]:
        if key not in self.found:
            return {}
        (distance, right), reference = self.found[key], self.found[full][0].result()
        found = distance.result()
        row: dict[str, Any] = {"distance": list(found.interval), "accuracy": right}
        return row if key == full else {**row, "distance_beyond_full": list(found.beyond(reference))}


def measure(
    network: Network,
    guidance: float,
    near: int,
    judged: int,
    budgets: Sequence[float] = BUDGETS,
    say: Say = lambda text: None,
    few: bool = False,
) -> Iterator[dict[str, Any]]:
    """One network at one guidance, with the rows known so far, after each budget; the last one is complete.

    Without a judge, or with judged=0, no distance is measured. With `few`, rivals have few settings.
    """
    asked, flow = Requests(network, guidance, near), network.prediction == "flow"
    full = asked.shown(asked.drawn(STEPS))
    goals = {"full": full, "converged": asked.shown(asked.drawn(CONVERGED))}
    agree = mean_interval(psnr(full, goals["converged"]).clamp(max=HIGHEST).cpu())
    say(f"{network.name}, guidance {guidance:g}: {STEPS} and {CONVERGED} steps agree to {agree[0]:.1f} dB")
    judge = picture_judge(network.model, network.model.device) if judged else None
    scores = score(network.model)
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(8) as pool:
        judging = None if judge is None else Judged(judge, Requests(network, guidance, judged), pool)
        if judging is not None:
            judging.take("full", judging.asked.drawn(STEPS))
        for budget in budgets:
            closer, ours = Near(goals), asked.held(STEPS, budget)
            evaluations = ours[1]
            work = {OURS: evaluations / STEPS}
            closer.take(Way(OURS, "", lambda many, budget=budget: many.held(STEPS, budget)[0]), asked.shown(ours[0]))
            share = evaluations / MANY_STEPS
            longer = asked.held(MANY_STEPS, share)
            work[MANY] = longer[1] / STEPS
            closer.take(
                Way(MANY, "", lambda many, share=share: many.held(MANY_STEPS, share)[0]), asked.shown(longer[0])
            )
            for way in rivals(flow, evaluations, few):
                latents = way.draw(asked)
                if latents is not None:
                    closer.take(way, asked.shown(latents))
                work[way.name] = evaluations / STEPS
            for way, computed in paper(scores, budget):
                closer.take(way, asked.shown(way.draw(asked)))
                work[way.name] = computed
            for name in closer.best:
                if judging is not None:
                    judging.take((budget, name), closer.aimed(name).draw(judging.asked))
                rows.append({"budget": budget, "work": work[name], "evaluations": evaluations, **closer.row(name)})
            told = ", ".join(f"{name} {_dB(closer, name, 'full')} / {_dB(closer, name, 'converged')}" for name in work)
            say(f"{network.name}, guidance {guidance:g}, {evaluations} of {STEPS}: {told} dB")
            known = rows
            if judging is not None:
                known = [{**row, **judging.row((row["budget"], row["way"]), "full")} for row in rows]
            about = described(network, guidance, near, 0 if judging is None else judged, few)
            ends = {"converged": list(agree), **({} if judging is None else judging.row("full", "full"))}
            yield {**about, "complete": budget == budgets[-1], "full": ends, "rows": known}


def described(network: Network, guidance: float, near: int, judged: int, few: bool) -> dict[str, Any]:
    return {
        "network": network.name,
        "guidance": guidance,
        "parameters": network.parameters,
        "prediction": network.prediction,
        "architecture": network.model.architecture.name,
        "early": bool(network.record.get("is_early")),
        "side": network.side,
        "trained_seconds": network.seconds,
        "trained_samples": network.record["samples_seen"],
        "held_out_loss": network.record.get("held_out_loss"),
        "near": near,
        "judged": judged,
        "few_settings": few,
    }


def _dB(closer: Near, name: str, goal: str) -> str:
    known = closer.best.get(name, {})
    return f"{float(known[goal][0].mean()):.1f}" if goal in known else "diverges"
