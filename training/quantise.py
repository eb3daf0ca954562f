"""Stores the blocks' matrices of a DiT in 8 bits, with a scale for each row, and measures what that changes.

    python -m training.quantise --checkpoint family/base --out weights/natural-dit

Each row of a matrix is divided by its largest magnitude / 127 and rounded. `tenuto.load` multiplies it out again, so
the network runs as before: only the files are half as large. The loss is measured on pictures that both checkpoints
draw from the same noise, and goes into quantised.json and onto the card.
"""

import shutil
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import read_json, write_json, write_text
from tenuto.models import load
from tenuto.models.checkpoint import SCALE, open_checkpoint
from tenuto.provenance import provenance
from tenuto.quality import psnr
from tenuto.sampling.pictures import generate
from tenuto_lab.judging.judges import picture_judge
from tenuto_lab.judging.statistics import mean_interval
from training.autoencoder import load_autoencoder
from training.family import quantised_section
from training.loop import Device, Seed, default_device, save_shards
from training.train_vae import decode_all

LARGEST = 127


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as int8 and the factors float16 of its rows [rows, 1]."""
    factors = (weight.float().abs().amax(dim=1, keepdim=True) / LARGEST).clamp(min=2**-24).half()
    return (weight.float() / factors.float()).round().clamp(-LARGEST, LARGEST).to(torch.int8), factors


def stored(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The blocks' matrices in 8 bits, everything else in float16."""
    result = {}
    for key, value in state.items():
        if key.startswith("blocks.") and value.ndim == 2:
            result[key], result[f"{key}{SCALE}"] = quantised(value)
        else:
            result[key] = value.half()
    return result


def measure(one: Path, other: Path, samples: int, seed: int, device: str) -> dict[str, Any]:
    """How the second checkpoint's pictures differ from the first's."""
    pictures, loaded = [], [load(str(path), device=device, dtype=torch.float32) for path in (one, other)]
    classes = [i * loaded[0].config.num_classes // samples for i in range(samples)]
    for model, path in zip(loaded, (one, other), strict=True):
        latents = generate(model, classes, seed=seed, guidance=loaded[0].guidance, batch=8)
        pictures.append(decode_all(load_autoencoder(path / "vae").to(device), latents))
    near = psnr(pictures[1], pictures[0]).clamp(max=200)
    judge, found = picture_judge(loaded[0], device), {}
    if judge is not None:
        right = [judge.agrees(some, torch.tensor(classes)) for some in pictures]
        found = {"right": [int(each.sum()) for each in right], "agree": int((right[0] == right[1]).sum())}
    bytes_of = [sum(file.stat().st_size for file in path.glob("model*.safetensors")) for path in (one, other)]
    return {
        "samples": samples,
        "guidance": loaded[0].guidance,
        "psnr": [round(value, 2) for value in (*mean_interval(near), float(near.min()))],
        "bytes": bytes_of,
        **found,
    }


def main(
    checkpoint: Annotated[Path, typer.Option(help="The directory that training.family wrote.")],
    out: Annotated[Path, typer.Option(help="The directory to write.")],
    samples: Annotated[int, typer.Option(min=1, help="Pictures to measure the loss with.")] = 40,
    device: Device = default_device(),
    seed: Seed = 0,
) -> None:
    """Write a checkpoint in 8 bits, and measure the loss."""
    if out.resolve() == checkpoint.resolve() or out.exists():
        raise UsageError(f"{out} is there already: the original is needed to measure the loss.")
    shutil.copytree(checkpoint, out, ignore=shutil.ignore_patterns("model*.safetensors*"))
    opened = open_checkpoint(checkpoint)
    save_shards(out, stored({key: opened.read(key) for key in opened.shapes}), "model{suffix}.safetensors")
    found = {**measure(checkpoint, out, samples, seed, device), "provenance": provenance(device, seed=seed)}
    write_json(out / "quantised.json", found)
    text = (out / "README.md").read_text(encoding="utf-8")
    section = quantised_section(read_json(out / "quantised.json", "record of 8 bits"))
    write_text(out / "README.md", text.replace("\n## Limits", f"\n{section}\n## Limits", 1))
    print({key: value for key, value in found.items() if key != "provenance"})


if __name__ == "__main__":
    run(main)
