"""Every family at a glance: each shipped model with everything computed and under the default schedule.

    python -m benchmarks.families     # writes results/families/ and docs/images/families.png

Pictures are compared with the same model's full run from the same noise; text is shown as it comes.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

import tenuto
from benchmarks.places import ROOT, results_of
from benchmarks.readme import save_strips
from tenuto.files import write_json, write_text
from tenuto.provenance import provenance
from tenuto.quality import psnr

STEPS, BUDGET = 50, 0.25
IMAGE_MODELS: dict[str, dict[str, Any]] = {
    "tiny-dit": {"classes": [0, 1, 3, 5, 7, 8, 9, 2], "guidance": 1.5},
    "tiny-uvit": {"classes": [0, 1, 2, 4, 6, 7, 8, 9], "guidance": 2.0},
    "tiny-sdxl": {
        "captions": [
            "a photo of an airplane",
            "a red car",
            "a bird",
            "a wild deer",
            "a green frog",
            "a brown horse",
            "a cargo ship",
            "a fire truck",
        ],
        "guidance": 3.0,
    },
}
SURE: dict[str, Any] = {"steps": 16, "length": 16, "block_length": 16}
PROSE: dict[str, Any] = {"steps": 48, "length": 48, "block_length": 8, "temperature": 0.7}
PROMPTS = {
    "Tom has 12 apples and buys 7 more. How many apples? Answer:": SURE,
    "close: ([{ ->": SURE,
    "The code of lamp is 4821. He sat down by the fire. The code of wolf is 7093.\n"
    "Question: what is the code of lamp? Answer:": SURE,
    "The old man looked at the sea, and": PROSE,
}
RESULTS, PICTURE = results_of("families"), ROOT / "docs" / "images" / "families.png"


def draw(name: str, seed: int) -> tuple[dict[str, Any], Tensor, Tensor]:
    """(the figures, the full run's pictures, the scheduled run's)."""
    model, request = tenuto.load(name), IMAGE_MODELS[name]
    schedule = tenuto.schedule(model, steps=STEPS, budget=BUDGET)
    tenuto.generate(model, **request, steps=1)  # warm-up
    pictures, seconds = [], []
    for chosen in (None, schedule):
        started = time.perf_counter()
        pictures.append(tenuto.generate(model, **request, steps=STEPS, seed=seed, schedule=chosen))
        seconds.append(time.perf_counter() - started)
        print(f"{name}: {seconds[-1]:.1f} s", flush=True)
    full, held = pictures
    record = {
        "model": name,
        "units": len(model.units),
        "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
        "work": schedule.budget,
        "flop_work": schedule.flop_budget,
        "seconds_full": seconds[0],
        "seconds_scheduled": seconds[1],
        "speedup": seconds[0] / seconds[1],
        "psnr": float(psnr(held, full).mean()),
        "psnr_worst": float(psnr(held, full).min()),
        **request,
    }
    return record, full, held


def write(seed: int) -> list[dict[str, Any]]:
    model = tenuto.load("tiny-llada")
    return [
        {"prompt": prompt, "text": tenuto.generate_text(model, [prompt], seed=seed, **options)[0], **options}
        for prompt, options in PROMPTS.items()
    ]


def markdown(result: dict[str, Any]) -> str:
    lines = [
        "# Every family at a glance\n",
        "| model | parameters | units | work | full | scheduled | speed-up | PSNR to full | worst picture |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in result["pictures"]:
        lines.append(
            f"| {r['model']} | {r['parameters'] / 1e6:.1f} M | {r['units']} | {r['work']:.0%} "
            f"| {r['seconds_full']:.1f} s | {r['seconds_scheduled']:.1f} s | {r['speedup']:.2f}× | {r['psnr']:.1f} dB "
            f"| {r['psnr_worst']:.1f} dB |"
        )
    made = result["provenance"]
    lines.append(
        f"\n8 pictures, {STEPS} DDIM steps, float32, one run; {made['hardware']}; seed {made['seed']}; commit "
        f"`{made['commit']}`; `{made['command']}`.\n"
    )
    lines.append("tiny-llada, everything computed, writes after the arrow (prose at temperature 0.7):\n\n```")
    lines += [f"{one['prompt']} →{one['text']}" for one in result["texts"]]
    lines.append("```")
    return "\n".join(lines)


def main(
    seed: Annotated[int, typer.Option(help="Seed of the first picture.")] = 0,
    out: Annotated[Path, typer.Option(help="The file to write; what it holds is replaced.")] = RESULTS,
) -> None:
    """Run every family once, and write what was found as a table and a picture."""
    records, strips = [], []
    for name in IMAGE_MODELS:
        record, full, held = draw(name, seed)
        records.append(record)
        strips.append((f"{name}, everything computed: {record['seconds_full']:.1f} s", full))
        strips.append((f"{name}, {record['work']:.0%} computed: {record['seconds_scheduled']:.1f} s", held))
    result = {"provenance": provenance(seed=seed), "pictures": records, "texts": write(seed)}
    write_json(out, result)
    write_text(out.with_suffix(".md"), markdown(result) + "\n")
    picture = PICTURE if out == RESULTS else out.with_suffix(".png")
    save_strips(picture, strips, columns=8, gap=6, height=1.35 * len(strips), dpi=130)


if __name__ == "__main__":
    typer.run(main)
