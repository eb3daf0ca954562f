"""What do pictures score that show nothing? For reading the FIDs of schedules that leave such pictures.

    python -m benchmarks.ruined            # minutes on one core

For each model the FID of white noise. And how often a picture shows the class asked for, when units are held for good
at a short horizon.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.places import ROOT
from scripts.command_line import run
from tenuto.files import write_json, write_text
from tenuto.provenance import origin, provenance
from tenuto_lab.judging.statistics import mean_interval
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.drawing_bench import PictureBench
from tenuto_lab.paper.static_rankings import ranked_way
from tenuto_lab.paper.ways import BUDGETS

OUT = ROOT / "results" / "ruined"
MODELS = ("tiny-dit", "tiny-uvit", "tiny-sdxl")
ORDERS = {"spectral": ("SCR/Frobenius", 1), "depth": ("depth", -1), "random": ("random", 1)}  # ranking, orientation
HORIZONS = (10, 20, 30)
NOISE = 500  # pictures of noise


def noise_fid(name: str) -> float:
    """The FID of white noise in the features of the model's judge."""
    bench = _bench(name, 1)
    generator = torch.Generator().manual_seed(0)
    noise = 2 * torch.rand(NOISE, *bench.model.config.sample_shape, generator=generator) - 1
    found = bench.judge.value(noise) if bench.judge is not None else None
    if found is None:
        raise SystemExit(f"{name} has no judge.")
    return found


def horizons(name: str, samples: int) -> list[dict[str, Any]]:
    """How often pictures show the class asked for, by horizon and order."""
    bench = _bench(name, samples)
    budget, found = BUDGETS[bench.family], []
    for steps in HORIZONS:
        for order, (ranking, orientation) in ORDERS.items():
            executor = ranked_way(bench, ranking, budget, orientation)(steps, 1)
            images = bench.draw(executor, steps, "ddim", 0).cpu()
            executor.release()
            found.append({"model": name, "steps": steps, "order": order, "agreement": _share(bench, images)})
            print(found[-1], flush=True)
    return found


def _bench(name: str, samples: int) -> PictureBench:
    bench = Lab((name,), samples, 1).bench(name).at("branch")
    if not isinstance(bench, PictureBench) or bench.judge is None or bench.labels is None:
        raise SystemExit(f"{name} has no judge that knows its classes.")
    return bench


def _share(bench: PictureBench, images: Tensor) -> list[float]:
    assert bench.judge is not None and bench.labels is not None
    return list(mean_interval(bench.judge.agrees(images, torch.tensor(bench.labels)).double().tolist(), 500))


def table(record: dict[str, Any]) -> str:
    """The result in Markdown."""
    made = record["provenance"]
    lines = ["# What pictures score that show nothing\n", f"{origin(made)}; {made['samples']} pictures of each.\n"]
    lines += ["| model | FID of white noise |", "|---|---:|"]
    lines += [f"| {model} | {fid:.1f} |" for model, fid in record["noise_fid"].items()]
    lines += ["\n| model | steps | order | class seen | 95 % interval |", "|---|---:|---|---:|---|"]
    for row in record["horizons"]:
        share, low, high = row["agreement"]
        lines.append(f"| {row['model']} | {row['steps']} | {row['order']} | {share:.0%} | {low:.0%} to {high:.0%} |")
    return "\n".join(lines) + "\n"


def main(samples: int = 20, out: Path = OUT) -> None:
    """Measure, and write the result and its table."""
    record = {
        "provenance": provenance("cpu", seed=0, samples=samples),
        "noise_fid": {name: noise_fid(name) for name in MODELS},
        "horizons": horizons("tiny-dit", samples),
    }
    write_json(out / "ruined.json", record)
    write_text(out / "ruined.md", table(record))


if __name__ == "__main__":
    run(main)
