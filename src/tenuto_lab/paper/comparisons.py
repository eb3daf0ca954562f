"""The paper's schedule compared with other samplers and caches, on models that draw: FID and latency."""

from collections.abc import Callable

from torch import Tensor

from tenuto.runtime.executor import Executor
from tenuto.sampling.pictures import Solver
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.candidates.composition import both
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.drawing_bench import PictureBench
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult
from tenuto_lab.paper.operating import SMALL
from tenuto_lab.paper.static_rankings import ranked
from tenuto_lab.paper.trials import Bench, Trial, Way, scheduled
from tenuto_lab.paper.ways import (
    BUDGETS,
    comparison,
    in_full,
    named,
    ours,
    quality_rows,
    spectral,
    time_row,
    trial_name,
    tried,
)
from tenuto_lab.rivals import (
    DeepCache,
    block_cache_at,
    blocks_of,
    changes,
    delta_dit,
    has_long_skips,
    learning_to_cache,
    outer_live_schedule,
    pro_cache,
)
from tenuto_lab.units.lifetimes import lifetimes

# The paper: family -> method -> (latency, FID), both divided by full inference's.
PAPER: dict[str, dict[str, tuple[float | None, float]]] = {
    "dit": {
        "DDIM, half the steps": (0.91 / 1.82, 3.14 / 2.27),
        "DPM-Solver++, 20 steps": (0.38 / 1.82, 2.51 / 2.27),
        "DeepCache": (0.42 / 1.82, 2.68 / 2.27),
        "Δ-DiT": (1.13 / 1.82, 2.41 / 2.27),
        "random static": (0.61 / 1.82, 3.21 / 2.27),
        "depth static": (0.61 / 1.82, 2.87 / 2.27),
        "spectral static": (0.61 / 1.82, 2.35 / 2.27),
        "spectral + DeepCache": (0.25 / 1.82, 2.48 / 2.27),
    },
    "uvit": {
        "DDIM, half the steps": (None, 3.91 / 3.08),
        "DPM-Solver++, 20 steps": (None, 3.42 / 3.08),
        "DeepCache": (None, 3.34 / 3.08),
        "random static": (None, 4.02 / 3.08),
        "depth static": (None, 3.61 / 3.08),
        "spectral static": (0.45 / 1.24, 3.15 / 3.08),
        "spectral + DeepCache": (None, 3.39 / 3.08),
    },
    "unet": {
        "DPM-Solver++, 20 steps": (1.92 / 4.80, 8.21 / 7.84),
        "DeepCache": (2.20 / 4.80, 8.56 / 7.84),
        "Block Caching": (2.00 / 4.80, 8.42 / 7.84),
        "depth static": (1.60 / 4.80, 8.88 / 7.84),
        "spectral static": (1.60 / 4.80, 8.09 / 7.84),
        "spectral + DPM-Solver++": (0.60 / 4.80, 8.45 / 7.84),
    },
}
# The names of the same trials in other experiments.
KNOWN_AS = {"Tenuto's default": "tenuto at {budget:g}"}
STATIC = {"random static": "random", "depth static": "depth", "spectral static": "SCR/Frobenius"}
COMPOSED = ("spectral + DPM-Solver++", "spectral + DeepCache", "DDIM, half the steps", "DPM-Solver++, 20 steps")
LATER = ("Learning-to-Cache", "ProCache")  # the paper only names them; a run that went without them still counts
LEARNED = 0.7  # the budget of Learning-to-Cache, which computes every second step in full
CLAIMED = ("random static", "depth static", "DeepCache", "Δ-DiT", "Block Caching")  # the paper's is better than these
EVERY = 3  # steps between refreshes of a cache
CALIBRATION = 8  # samples
Method = tuple[Way, int, Solver]  # the way, its steps, and the solver


def comparisons(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    for bench in lab.benches():
        if not isinstance(bench, PictureBench):
            continue
        base, budget = lab.steps or bench.steps, BUDGETS.get(bench.family, 0.35)
        full = tried(lab, bench, "full", in_full(bench), base)
        found: dict[str, list[Trial]] = {
            title: ranked(lab, bench, ranking, budget, base, timed=True) for title, ranking in STATIC.items()
        }
        for method, (way, steps, solver) in methods(bench, base).items():
            known_as = KNOWN_AS.get(method, method).format(budget=budget)
            if "spectral" in method:
                known_as = named(bench, known_as)
            if method in LATER and lab.made and not lab.known(trial_name(lab, bench, known_as, steps, base, solver)):
                why = "not measured: the paper gives no figure for it"
                rows.append(ClaimRow(f"{method}: FID", bench.model.name, None, None, note=why))
                continue
            found[method] = [tried(lab, bench, known_as, way, steps, base, solver, timed=True)]
        for method, trials in found.items():
            time, fid = PAPER.get(bench.family, {}).get(method, (None, None))
            one = trials[0]
            rows.append(ClaimRow(f"{method}: share of unit-steps", bench.model.name, None, one.work))
            rows.append(time_row(f"{method}: time, of eager full inference", bench, time, one.share_of_time))
            claimed = {} if fid is None else {"fid": fid - 1}
            rows += quality_rows(bench, method, one, full, claimed, claims=False)
        for other in [name for name in found if name not in ("spectral static", *COMPOSED)]:
            pair, claim = (found["spectral static"][0], found[other]), other in CLAIMED
            rows.append(
                comparison(
                    bench, "spectral static", other, pair, "better" if claim else None, paper=_gain(bench, other)
                )
            )
    return ExperimentResult(
        rows,
        "Methods differ in their work, as in the paper's table; the rows say how much each computes.",
        limits=SMALL
        + " Block Caching is without its trained scales and shifts, Learning-to-Cache's routers learn from "
        f"{CALIBRATION} samples, and ProCache computes all tokens of the deep blocks. DiT has no long skips, so "
        "DeepCache there holds all blocks but the first and last; U-ViT and the UNet have long skips, and DeepCache is "
        "the published one.",
    )


def _gain(bench: Bench, other: str) -> float | None:
    paper = PAPER.get(bench.family, {})
    return paper[other][1] - paper["spectral static"][1] if other in paper and "spectral static" in paper else None


def methods(bench: PictureBench, base: int) -> dict[str, Method]:
    """The methods by name. DeepCache is refreshed at every third step."""
    model, budget, fewer = bench.model, BUDGETS.get(bench.family, 0.35), dpm_steps(bench.family, base)
    unet = bench.family == "unet"
    found: dict[str, Method] = {
        "DDIM, half the steps": (in_full(bench), base // 2, "ddim"),
        "DPM-Solver++, 20 steps": (in_full(bench), fewer, "dpm++"),
        "DeepCache": (_deep_cache(bench), base, "ddim"),
        "spectral + DPM-Solver++": (spectral(bench, budget), fewer, "dpm++"),
        "spectral + DeepCache": (_deep_cache(bench, budget), base, "ddim"),
        "Tenuto's default": (ours(bench, budget), base, "ddim"),
        "Tenuto's default at a fifth": (ours(bench, 0.2), base, "ddim"),
    }
    if not unet:
        count = blocks_of([unit.name for unit in model.units])[-1] + 1
        found["Δ-DiT"] = (
            scheduled(
                model,
                lambda steps, blocks: delta_dit(model, steps, every=2, cached=3 * count // 4, boundary=0.5),
            ),
            base,
            "ddim",
        )
        found["Learning-to-Cache"] = (_calibrated(bench, base, LEARNED, learning_to_cache), base, "ddim")
        found["ProCache"] = (_calibrated(bench, base, budget, pro_cache), base, "ddim")
    found["Block Caching"] = (_block_caching(bench, base, 0.4), base, "ddim")
    return found


def dpm_steps(family: str, base: int) -> int:
    """DPM-Solver++'s steps: the paper takes 20 of 100, of SDXL 20 of 50; in proportion if the full run is another."""
    return max(5, round(base * (0.4 if family == "unet" else 0.2)))


def _deep_cache(bench: Bench, budget: float | None = None) -> Way:
    """DeepCache, with features held; with a budget, its computed units also end with their spectral lifetime."""
    if has_long_skips(bench.model):
        names = [unit.name for unit in bench.model.units]

        def deep(steps: int, blocks: int) -> DeepCache:
            ends = None if budget is None else lifetimes(bench.scores, steps, budget=budget)
            return DeepCache(bench.model.network, names, EVERY, ends=ends)

        return deep
    return scheduled(bench.model, lambda steps, blocks: _outer_live(bench, steps, budget))


def _outer_live(bench: Bench, steps: int, budget: float | None) -> Schedule:
    made = outer_live_schedule(bench.model, steps, EVERY)
    return made if budget is None else both(lifetimes(bench.scores, steps, budget=budget), made)


def _calibrated(bench: PictureBench, steps: int, budget: float, make: Callable[..., Schedule]) -> Way:
    """A schedule made from a few samples that are not judged."""

    def draw(executor: Executor) -> Tensor:
        return bench.draw(executor, steps, "ddim", 99, CALIBRATION)

    return scheduled(bench.model, lambda steps, blocks: make(bench.model, steps, budget, draw))


def _block_caching(bench: PictureBench, steps: int, budget: float) -> Way:
    def calibrated() -> Schedule:
        seen = changes(bench.model, steps, lambda executor: bench.draw(executor, steps, "ddim", 99, CALIBRATION))
        return block_cache_at(bench.model, steps, budget, seen)

    return scheduled(bench.model, lambda steps, blocks: calibrated())
