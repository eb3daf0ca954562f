"""Every way of running a schedule, timed on the full-size networks: the ladder from eager to compiled jagged graphs.

    python -m benchmarks.ladder                       # all of it, on one GPU
    python -m benchmarks.ladder --only dit --only llada:1x512 --quick

Weights are random, as time does not depend on them. Lifetimes are spectral: those of the small model of the same
layout, by depth and kind, at the paper's budget, by blocks as the paper counts. Results are written after each
setting, so that an interrupted run keeps what it has; settings that this commit has measured already are left out
unless --again is given. A table and a picture are drawn of whatever the file holds.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.places import ROOT, results_of
from scripts.command_line import run
from tenuto.files import write_json, write_text
from tenuto.models import architecture
from tenuto.provenance import commit, provenance
from tenuto_lab.networks.unet import UNetConfig
from tenuto_lab.scoring.scoring_models import score
from tenuto_lab.speed.end_to_end import end_to_end
from tenuto_lab.speed.ladder import TimedNetwork, ceilings, ladder, measure, timed_network, where_time_goes
from tenuto_lab.speed.ladder_report import ladder_picture, ladder_tables, read_ladder

RESULTS, PICTURE = results_of("ladder"), ROOT / "docs" / "images" / "ladder.png"
# family -> (name, the paper's budget, images or tokens)
FAMILIES = {
    "llada": ("LLaDA-8B", 0.35, (512, 128, 1024, 4096)),
    "dit": ("DiT-XL/2", 0.34, (16, 1)),
    "uvit": ("U-ViT-L/2", 0.36, (16, 1)),
    "sdxl": ("SDXL UNet", 0.32, (8, 1)),
}
PAPER = {"llada": 3.0, "dit": 3.0, "uvit": 2.8, "sdxl": 3.0}  # its speed-ups over eager inference, on an H100
SETTINGS = {f"{family}:{size}": (family, size) for family, (_, _, sizes) in FAMILIES.items() for size in sizes}
TINY: dict[str, dict[str, Any]] = {
    "llada": {"n_layers": 2, "d_model": 64, "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 96},
    "dit": {"hidden_size": 64, "depth": 2, "num_heads": 2},
    "uvit": {"embed_dim": 64, "depth": 4, "num_heads": 2},
    "sdxl": {
        "sample_size": 32,
        "block_out_channels": [32, 64, 64],
        "attention_head_dim": [1, 2, 2],
        "transformer_layers_per_block": [1, 1, 2],
    },
}


def make_subject(family: str, size: int, device: torch.device, dtype: torch.dtype, tiny: bool) -> TimedNetwork:
    """A full-size network with weights of about the size they have, and inputs of one setting."""
    title, changes = FAMILIES[family][0], TINY[family] if tiny else {}
    known = architecture("unet" if family == "sdxl" else family)
    config = known.config()
    if family == "sdxl":
        config = UNetConfig.from_diffusers({**config.to_diffusers(), **changes})
    else:
        config = replace(config, **changes)
    with torch.device("meta"):
        network = known.network(config)
    network = network.to(dtype).to_empty(device=device).eval().requires_grad_(False)
    generator = torch.Generator(device).manual_seed(0)
    for parameter in network.parameters():
        parameter.normal_(std=0.02, generator=generator) if parameter.dim() > 1 else parameter.fill_(1.0)
    if family == "llada":
        return timed_network(title, network, known, config, batch=1, tokens=size)
    if family == "sdxl":
        network.to(memory_format=torch.channels_last)
    subject = timed_network(title, network, known, config, batch=2 * size)
    return replace(subject, setting=f"{size} with guidance")


def main(
    out: Annotated[Path, typer.Option(help="The file to write, and to go on from.")] = RESULTS,
    only: Annotated[list[str] | None, typer.Option(help="Settings, or families: dit, llada:512, …")] = None,
    steps: Annotated[
        int | None, typer.Option(min=2, help="Of the lifetime schedules. Default: the paper's 100; SDXL 50.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Generations timed; the median counts.")] = 3,
    quick: Annotated[bool, typer.Option(help="The complete system and its yardsticks only.")] = False,
    again: Annotated[bool, typer.Option(help="Measure what is in the file already, too.")] = False,
    tiny: Annotated[bool, typer.Option(help="Small networks: to try the script, not to measure.")] = False,
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Measure nothing; draw what the file holds.")] = False,
    whole: Annotated[bool, typer.Option(help="Also whole generations: sampler, guidance, VAE.")] = True,
    device: Annotated[str, typer.Option(help="Where to run.")] = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Time every way of running a schedule on the full-size networks."""
    where = torch.device(device)
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    known = read_ladder(out) if out.exists() else {"settings": {}, "rows": []}
    for name, (family, size) in SETTINGS.items():
        if draw_only or (only and name not in only and family not in only):
            continue
        if known["settings"].get(name, {}).get("commit") == commit() and not again:
            print(f"{name} is in {out} already, of this commit")
            continue
        subject = make_subject(family, size, where, dtype, tiny)
        taken = steps or (50 if family == "sdxl" else 100)
        rungs = ladder(subject, FAMILIES[family][1], taken, quick, score(f"tiny-{family}"))
        rows = measure(subject, rungs, repeats, lambda text: print(text, flush=True))
        known["rows"] = [row for row in known["rows"] if row["case"] != name]
        known["rows"] += [{"case": name, **row.to_json()} for row in rows]
        spent = where_time_goes(subject)
        known["settings"][name] = provenance(
            device, seed=0, ceilings=ceilings(where), spent=spent, lifetimes=f"spectral, of tiny-{family}"
        )
        if whole:
            paper = next(rung.schedule for rung in rungs if rung.schedule is not None and "lifetimes" in rung.name)
            timed = end_to_end(subject, family, paper, repeats)
            print(f"{name}  end to end: {timed['eager_s']:.2f} s eager, {timed['scheduled_s']:.2f} s", flush=True)
            known["settings"][name]["end_to_end"] = timed
        write_json(out, known)
        del subject, rungs, rows
        if where.type == "cuda":
            torch.cuda.empty_cache()
    draw(known, out)


def draw(known: dict[str, Any], out: Path) -> None:
    write_text(out.with_suffix(".md"), ladder_tables(known, PAPER))
    ladder_picture(known, PICTURE if out == RESULTS else out.with_suffix(".png"))


if __name__ == "__main__":
    run(main)
