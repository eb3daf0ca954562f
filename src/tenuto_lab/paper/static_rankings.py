"""Does the score order the units better than other numbers do, at the same work?"""

from dataclasses import replace

from tenuto.scoring.scores import Scores
from tenuto_lab.candidates.allocation import anchors
from tenuto_lab.candidates.ranked_lifetimes import Statistic, ranked_lifetimes, statistic_of
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, Figure, Panel
from tenuto_lab.paper.operating import SMALL
from tenuto_lab.paper.score_validity import freeze_errors_of
from tenuto_lab.paper.trials import Bench, Trial, Way, scheduled
from tenuto_lab.paper.ways import BUDGETS, above, in_full, paired_row, quality_rows, tried
from tenuto_lab.probing.sensitivity import orientation, scr_and_stable_rank

REFRESHED = 0.25  # the budget at which rankings choose the units with an extra refresh
SPEARMAN = {"llada": -0.31, "dit": -0.27, "uvit": -0.24, "unet": -0.35}  # the paper's, of SCR and stable rank
# The paper: GSM8K for LLaDA, FID for the others, in the order of NAMES.
PAPER: dict[str, tuple[float, ...]] = {
    "llada": (63.4, 66.2, 67.2, 66.8, 67.5, 67.6, 67.9, 68.1),
    "dit": (3.21, 2.87, 2.74, 2.69, 2.61, 2.55, 2.43, 2.35),
    "uvit": (4.02, 3.61, 3.44, 3.39, 3.31, 3.27, 3.22, 3.15),
    "unet": (9.45, 8.88, 8.64, 8.57, 8.43, 8.34, 8.19, 8.09),
}
FULL = {"llada": 68.3, "dit": 2.27, "uvit": 3.08, "unet": 7.84}
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
SHORT: dict[str, Statistic] = {"spectral": "score", "depth": "depth", "random": "random"}


def ranked_way(bench: Bench, name: str, budget: float, orientation: int = 1) -> Way:
    """Lifetimes by a ranking. `name` is a key of NAMES or SHORT."""
    statistic = SHORT.get(name) or NAMES[name]
    return scheduled(
        bench.model,
        lambda steps, blocks: ranked_lifetimes(bench.scores, steps, statistic, budget, orientation=orientation),
    )


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
        frozen: dict[str, Trial] = {}
        fresh: dict[str, Trial] = {}
        for place, ranking in enumerate(NAMES):
            sign = turned[ranking]
            way = ranked_way(bench, ranking, budget, sign)
            frozen[ranking] = tried(lab, bench, f"{_known_as(ranking, sign)} at {budget:g}", way)
            rows += quality_rows(
                bench, f"held for good, {ranking}", frozen[ranking], full, _paper(bench, place), claims=False
            )
            if not bench.writes:
                fresh[ranking] = tried(
                    lab,
                    bench,
                    f"refreshed, {ranking} once more, {sign:+d}",
                    refreshed_way(bench, ranking, sign),
                )
                rows += [
                    row
                    for row in quality_rows(bench, f"refreshed, {ranking}", fresh[ranking], full, {})
                    if "dB" in row.quantity or "FID" in row.quantity
                ]
        for kind, found in (("held for good", frozen), ("refreshed", fresh)):
            for ranking in list(NAMES)[:-1] if found else ():
                rows.append(
                    paired_row(
                        bench,
                        f"{kind}: SCR/Frobenius less {ranking}, {bench.quality}",
                        (found["SCR/Frobenius"], found[ranking]),
                        bench.quality,
                        above if kind == "held for good" else None,
                        note=f"{{test}}; {ranking} oriented {turned[ranking]:+d}",
                    )
                )
        both = scr_and_stable_rank(bench.scores)
        rows.append(
            ClaimRow(
                "Spearman ρ of SCR and stable rank",
                name,
                SPEARMAN.get(bench.family),
                both.rho,
                note=f"p = {both.p:.2g}",
            )
        )
        shown = {"held for good": frozen, **({"refreshed": fresh} if fresh else {})}
        panels.append(
            Panel(
                name,
                {kind: [(r, t.mean(bench.quality)[0]) for r, t in found.items()] for kind, found in shown.items()},
                across=bench.quality,
            )
        )
    return ExperimentResult(
        rows,
        "A comparison holds where SCR/Frobenius is better than the other ranking by more than the "
        "interval of the paired difference, units held for good. Every ranking gives out the same lifetimes, and is "
        "oriented by the sign of its correlation with the freeze errors measured on this network.",
        Figure("bars", panels),
        SMALL,
    )


def orientations(lab: Lab, bench: Bench) -> dict[str, int]:
    """For each ranking: 1 if a larger number means a longer lifetime, else −1. The measured freeze errors decide."""
    errors = freeze_errors_of(lab, bench)
    found = {name: orientation(statistic_of(bench.scores, NAMES[name]), errors).sign for name in NAMES}
    return {**found, "random": 1, "SCR/Frobenius": 1}


def _known_as(ranking: str, sign: int) -> str:
    """The name of the same trial in other experiments."""
    return {"SCR/Frobenius": "spectral"}.get(ranking, ranking) + ("" if sign > 0 else ", reversed,")


def _paper(bench: Bench, place: int) -> dict[str, float]:
    if bench.family not in PAPER:
        return {}
    value, full = PAPER[bench.family][place], FULL[bench.family]
    return {"arithmetic": (value - full) / 100} if bench.writes else {"fid": value / full - 1}


def _with(scores: Scores, values: list[float]) -> Scores:
    units = tuple(replace(unit, score=value) for unit, value in zip(scores.units, values, strict=True))
    return replace(scores, units=units)
