"""Does the score order the units better than other numbers do, at the same work?

Every experiment takes its rankings from here: one orientation of each, measured once on the network, and several
random orders.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from tenuto_lab.candidates.allocation import anchors
from tenuto_lab.candidates.ranked_lifetimes import Statistic, ranked_lifetimes, statistic_of
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, Figure, Panel
from tenuto_lab.paper.operating import SMALL, redundancy_row
from tenuto_lab.paper.score_validity import freeze_errors_of
from tenuto_lab.paper.trials import Bench, Trial, Way, scheduled
from tenuto_lab.paper.ways import BUDGETS, FULL, comparison, in_full, named, quality_rows, spectral, tried
from tenuto_lab.probing.sensitivity import orientation
from tenuto_lab.scoring.scores import Scores

REFRESHED = 0.25  # the budget at which rankings choose the units with an extra refresh
# The paper: GSM8K for LLaDA, FID for the others, in the order of NAMES.
PAPER: dict[str, tuple[float, ...]] = {
    "llada": (63.4, 66.2, 67.2, 66.8, 67.5, 67.6, 67.9, 68.1),
    "dit": (3.21, 2.87, 2.74, 2.69, 2.61, 2.55, 2.43, 2.35),
    "uvit": (4.02, 3.61, 3.44, 3.39, 3.31, 3.27, 3.22, 3.15),
    "unet": (9.45, 8.88, 8.64, 8.57, 8.43, 8.34, 8.19, 8.09),
}
NAMES: dict[str, Statistic] = {
    "random": "random",
    "depth": "depth",
    "Frobenius norm": "frobenius",
    "spectral norm": "spectral_norm",
    "stable rank": "stable_rank",
    "Frobenius x stable rank": "frobenius_stable_rank",
    "raw SCR": "scr",
    "SCR/Frobenius": "score",
}
OURS = "SCR/Frobenius"


def ranked_way(bench: Bench, ranking: str, budget: float, orientation: int = 1, seed: int = 0) -> Way:
    """Lifetimes by a ranking, a key of NAMES."""
    return scheduled(
        bench.model,
        lambda steps, blocks: ranked_lifetimes(
            bench.scores, steps, NAMES[ranking], budget, seed, orientation=orientation
        ),
    )


def ranked(
    lab: Lab, bench: Bench, ranking: str, budget: float, steps: int | None = None, timed: bool = False
) -> list[Trial]:
    """The trials of a ranking: one, or one for each random order. timed: whether the time of the first is asked for."""
    if ranking == OURS:
        name = named(bench, f"spectral at {budget:g}")
        return [tried(lab, bench, name, spectral(bench, budget), steps, timed=timed)]
    sign = orientations(lab, bench)[ranking]
    known_as = ranking if sign > 0 else f"{ranking}, reversed"
    return [
        tried(
            lab,
            bench,
            named(bench, f"{known_as} at {budget:g}" + (f", order {seed}" if ranking == "random" else "")),
            ranked_way(bench, ranking, budget, sign, seed),
            steps,
            timed=timed and seed == 0,
        )
        for seed in range(lab.orders if ranking == "random" else 1)
    ]


def refreshed_way(bench: Bench, name: str, orientation: int = 1) -> Way:
    """Refreshes all units together, and the highest-ranked units (half of the work) once more in between."""
    values = orientation * statistic_of(bench.scores, NAMES[name])
    ordered = _with(bench.scores, values.tolist())
    return scheduled(
        bench.model,
        lambda steps, blocks: replace(
            anchors(ordered, steps, budget=REFRESHED, ranking="spectral"), fingerprint=bench.scores.fingerprint
        ),
    )


def rankings(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    panels: list[Panel] = []
    for bench in lab.benches():
        name, budget = bench.model.name, BUDGETS.get(bench.family, 0.35)
        turned = orientations(lab, bench)
        full = tried(lab, bench, "full", in_full(bench))
        frozen = {ranking: ranked(lab, bench, ranking, budget) for ranking in NAMES}
        for place, (ranking, trials) in enumerate(frozen.items()):
            rows += quality_rows(
                bench, f"held for good, {ranking}", trials[0], full, _paper(bench, place), claims=False
            )
        fresh: dict[str, Trial] = {}
        if not bench.writes and bench.granularity == "branch":
            fresh = (
                lab.optional(
                    f"{name} with extra refreshes, which are not the paper's,", partial(_refreshed, lab, bench, turned)
                )
                or {}
            )
        for place, ranking in enumerate(list(NAMES)[:-1]):
            against = frozen[OURS][0], frozen[ranking]
            told = f"oriented {turned[ranking]:+d}"
            gain = _gain(bench, place)
            rows.append(comparison(bench, OURS, ranking, against, paper=gain, note=told, full=full))
            if fresh:
                pair = fresh[OURS], fresh[ranking]
                rows.append(comparison(bench, f"refreshed: {OURS}", ranking, pair, None, note=told))
        rows.append(redundancy_row(bench))
        panels.append(_panel(bench, frozen, fresh))
    return ExperimentResult(
        rows,
        "Every ranking gives out the same lifetimes and is oriented by the sign of its correlation with the freeze "
        "errors measured on this network; SCR/Frobenius is not oriented, because the paper says how it points.",
        Figure("bars", panels),
        SMALL,
    )


def _refreshed(lab: Lab, bench: Bench, turned: dict[str, int]) -> dict[str, Trial]:
    """Not the paper's: all units are refreshed, and each ranking says which of them once more."""
    return {
        ranking: tried(lab, bench, f"refreshed, {ranking} once more, {sign:+d}", refreshed_way(bench, ranking, sign))
        for ranking, sign in ((ranking, turned[ranking]) for ranking in NAMES)
    }


def _panel(bench: Bench, frozen: dict[str, list[Trial]], fresh: dict[str, Trial]) -> Panel:
    title = f"{bench.model.name}, by {'branches' if bench.granularity == 'branch' else 'blocks'}"
    first = next(iter(frozen.values()))[0]
    if not bench.writes and "fid" in first.figures:
        series = {"held for good": [(r, float(np.mean([_share(one) for one in t]))) for r, t in frozen.items()]}
        return Panel(title, series, across="FID, of full inference's")
    shown = {"held for good": {r: t[0] for r, t in frozen.items()}, **({"refreshed": fresh} if fresh else {})}
    value = bench.tasks[0] if bench.writes else bench.quality
    bars = {kind: [(r, t.mean(value)[0]) for r, t in found.items()] for kind, found in shown.items()}
    return Panel(title, bars, across=f"{value}, right answers" if bench.writes else bench.quality)


def _share(trial: Trial) -> float:
    return trial.figures["fid"][0] / trial.figures["full_fid"][0]


def orientations(lab: Lab, bench: Bench) -> dict[str, int]:
    """For each ranking: 1 if a larger number means a longer lifetime, else −1. The measured freeze errors decide.

    They are measured once for each network, on single branches, and every experiment uses the same signs.
    """
    branches = bench.at("branch")
    errors = freeze_errors_of(lab, branches)
    found = {name: orientation(statistic_of(branches.scores, NAMES[name]), errors).sign for name in NAMES}
    return {**found, "random": 1, OURS: 1}


def _paper(bench: Bench, place: int) -> dict[str, float]:
    if bench.family not in PAPER:
        return {}
    value, full = PAPER[bench.family][place], FULL[bench.family]
    return {"task": (value - full) / 100} if bench.writes else {"fid": value / full - 1}


def _gain(bench: Bench, place: int) -> float | None:
    """How much better SCR/Frobenius is in the paper."""
    if bench.family not in PAPER:
        return None
    mine, other = PAPER[bench.family][-1], PAPER[bench.family][place]
    return (mine - other) / 100 if bench.writes else (other - mine) / FULL[bench.family]


def _with(scores: Scores, values: list[float]) -> Scores:
    units = tuple(replace(unit, score=value) for unit, value in zip(scores.units, values, strict=True))
    return replace(scores, units=units)
