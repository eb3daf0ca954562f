"""The paper's schedule compared with other samplers and caches, on models that draw: FID and latency."""

import numpy as np

from tenuto.sampling.pictures import Solver
from tenuto.scheduling.lifetimes import lifetimes
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.candidates.composition import both
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult
from tenuto_lab.paper.operating import SMALL
from tenuto_lab.paper.static_rankings import ranked_way
from tenuto_lab.paper.trials import Bench, PictureBench, Trial, Way, scheduled
from tenuto_lab.paper.ways import BUDGETS, above, in_full, ours, paired_row, quality_rows, spectral, tried
from tenuto_lab.rivals import (
    DeepCache,
    block_cache_at,
    blocks_of,
    changes,
    deep_cache_schedule,
    delta_dit,
    schedule_for,
)

# The paper: family -> method -> (latency, FID), both divided by full inference's.
PAPER: dict[str, dict[str, tuple[float | None, float]]] = {
    "dit": {
        "DDIM, half the steps": (0.91 / 1.82, 3.14 / 2.27),
        "DPM-Solver++, a fifth": (0.38 / 1.82, 2.51 / 2.27),
        "DeepCache": (0.42 / 1.82, 2.68 / 2.27),
        "Δ-DiT": (1.13 / 1.82, 2.41 / 2.27),
        "random static": (0.61 / 1.82, 3.21 / 2.27),
        "depth static": (0.61 / 1.82, 2.87 / 2.27),
        "spectral static": (0.61 / 1.82, 2.35 / 2.27),
        "spectral + DeepCache": (0.25 / 1.82, 2.48 / 2.27),
    },
    "uvit": {
        "DDIM, half the steps": (None, 3.91 / 3.08),
        "DPM-Solver++, a fifth": (None, 3.42 / 3.08),
        "DeepCache": (None, 3.34 / 3.08),
        "random static": (None, 4.02 / 3.08),
        "depth static": (None, 3.61 / 3.08),
        "spectral static": (0.45 / 1.24, 3.15 / 3.08),
        "spectral + DeepCache": (None, 3.39 / 3.08),
    },
    "unet": {
        "DPM-Solver++, a fifth": (1.92 / 4.80, 8.21 / 7.84),
        "DeepCache": (2.20 / 4.80, 8.56 / 7.84),
        "Block Caching": (2.00 / 4.80, 8.42 / 7.84),
        "depth static": (1.60 / 4.80, 8.88 / 7.84),
        "spectral static": (1.60 / 4.80, 8.09 / 7.84),
        "spectral + DPM-Solver++": (0.60 / 4.80, 8.45 / 7.84),
    },
}
# The names of the same trials in other experiments.
KNOWN_AS = {
    "random static": "random at {budget:g}",
    "depth static": "depth at {budget:g}",
    "spectral static": "spectral at {budget:g}",
    "Tenuto's default": "tenuto at {budget:g}",
}
EVERY = 3  # steps between refreshes of a cache
CALIBRATION = 8  # samples
Method = tuple[Way, int, Solver]  # the way, its steps, and the solver


def comparisons(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    for bench in lab.benches():
        if not isinstance(bench, PictureBench):
            continue
        base = lab.steps or bench.steps
        full = tried(lab, bench, "full", in_full(bench), base)
        found: dict[str, Trial] = {}
        for method, (way, steps, solver) in methods(bench, base).items():
            known_as = KNOWN_AS.get(method, "{}").format(method, budget=BUDGETS.get(bench.family, 0.35))
            found[method] = tried(lab, bench, known_as, way, steps, base, solver)
            time, fid = PAPER.get(bench.family, {}).get(method, (None, None))
            rows.append(ClaimRow(f"{method}: share of unit-steps", bench.model.name, None, found[method].work))
            rows.append(
                ClaimRow(f"{method}: time, of eager full inference", bench.model.name, time, 1 / found[method].speedup)
            )
            claimed = {} if fid is None else {"fid": fid - 1}
            rows += quality_rows(bench, method, found[method], full, claimed, claims=False)
        for other in ("random static", "depth static", "DeepCache", "Δ-DiT", "Block Caching", "Tenuto's default"):
            if other in found:
                quantity = f"spectral static less {other}, dB to the full run"
                claim = above if other != "Tenuto's default" else None
                rows.append(paired_row(bench, quantity, (found["spectral static"], found[other]), "psnr", claim))
    return ExperimentResult(
        rows,
        "A comparison holds where the paper's schedule is nearer to the full run than the other by "
        "more than the interval of the paired difference.",
        limits=SMALL
        + " On transformers, which have no long skips, DeepCache here holds all blocks but the first and last.",
    )


def methods(bench: PictureBench, base: int) -> dict[str, Method]:
    """The methods by name. DeepCache is refreshed at every third step."""
    model, budget, fifth = bench.model, BUDGETS.get(bench.family, 0.35), max(5, base // 5)
    unet = bench.family == "unet"
    found: dict[str, Method] = {
        "DDIM, half the steps": (in_full(bench), base // 2, "ddim"),
        "DPM-Solver++, a fifth": (in_full(bench), fifth, "dpm++"),
        "DeepCache": (_deep_cache(bench), base, "ddim"),
        "random static": (ranked_way(bench, "random", budget), base, "ddim"),
        "depth static": (ranked_way(bench, "depth", budget), base, "ddim"),
        "spectral static": (spectral(bench, budget), base, "ddim"),
        "spectral + DPM-Solver++": (spectral(bench, budget), fifth, "dpm++"),
        "spectral + DeepCache": (
            scheduled(
                model,
                lambda steps, blocks: both(lifetimes(bench.scores, steps, budget=budget), _deep_schedule(bench, steps)),
            ),
            base,
            "ddim",
        ),
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
    found["Block Caching"] = (_block_caching(bench, base, 0.4), base, "ddim")
    return found


def _deep_cache(bench: Bench) -> Way:
    if bench.family == "unet":
        names = [unit.name for unit in bench.model.units]
        return lambda steps, blocks: DeepCache(bench.model.network, names, EVERY)
    return scheduled(bench.model, lambda steps, blocks: _deep_schedule(bench, steps))


def _deep_schedule(bench: Bench, steps: int) -> Schedule:
    """Computes the same units as DeepCache, and holds updates. In a transformer, the outer blocks are always live."""
    if bench.family == "unet":
        return deep_cache_schedule(bench.model, steps, EVERY)
    blocks = np.array(blocks_of([unit.name for unit in bench.model.units]))
    outer = (blocks == 0) | (blocks == blocks[-1])
    active = outer[:, None] | (np.arange(steps) % EVERY == 0)[None, :]
    return schedule_for(bench.model, active, "update", {"name": "deep_cache", "every": EVERY})


def _block_caching(bench: PictureBench, steps: int, budget: float) -> Way:
    def calibrated() -> Schedule:
        few = PictureBench(bench.model, CALIBRATION, [99])
        seen = changes(bench.model, steps, few.sample(steps))
        return block_cache_at(bench.model, steps, budget, seen)

    return scheduled(bench.model, lambda steps, blocks: calibrated())
