"""Stores the matrices of a DiT's blocks, or all of a LLaDA's, in 8 bits with a scale for each row, and says the loss.

    python -m training.quantise --checkpoint family/base --out weights/natural-dit
    python -m training.quantise --checkpoint trained/small-llada --out weights/small-llada

Each row of a matrix is divided by its largest magnitude / 127 and rounded. `tenuto.load` multiplies it out again, so
the network runs as before: only the files are half as large. The loss is measured on pictures that both checkpoints
draw from the same noise, or on the problems of problems.json that both answer. It goes into quantised.json and onto the
card.
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
from tenuto.models import Model, load
from tenuto.models.checkpoint import SCALE, open_checkpoint
from tenuto.models.llada import LLaDA
from tenuto.provenance import provenance
from tenuto.quality import psnr
from tenuto.sampling.pictures import generate
from tenuto_lab.judging.judges import picture_judge
from tenuto_lab.judging.statistics import mean_interval
from training.autoencoder import load_autoencoder
from training.evaluate_small_llada import Question, in_batches, write_by_threshold, write_problem_file
from training.family_card import quantised_section
from training.llada_text import Problem
from training.loop import Device, Seed, default_device, save_shards
from training.reasoning_tasks import Posed
from training.small_llada_card import ALL_PROBLEMS
from training.small_llada_card import quantised_section as quantised_text_section
from training.train_vae import decode_all

LARGEST = 127


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as int8 and the factors float16 of its rows [rows, 1]."""
    factors = (weight.float().abs().amax(dim=1, keepdim=True) / LARGEST).clamp(min=2**-24).half()
    return (weight.float() / factors.float()).round().clamp(-LARGEST, LARGEST).to(torch.int8), factors


def stored(state: dict[str, Tensor], everywhere: bool = False) -> dict[str, Tensor]:
    """The blocks' matrices in 8 bits, or all matrices; everything else in float16."""
    result = {}
    for key, value in state.items():
        if value.ndim == 2 and (everywhere or key.startswith("blocks.")):
            result[key], result[f"{key}{SCALE}"] = quantised(value)
        else:
            result[key] = value.half()
    return result


def is_text(model: Model) -> bool:
    return isinstance(model.network, LLaDA)


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


def measure_text(one: Path, other: Path, samples: int, batch_tokens: int, device: str) -> dict[str, Any]:
    """How the second checkpoint's answers to the problems of problems.json differ from the first's."""
    stored_problems = one / "problems.json"
    told = read_json(stored_problems, "file of problems") if stored_problems.exists() else {"problems": {}}
    networks: list[Any] = [load(str(path), device=device, dtype=torch.float32).network for path in (one, other)]
    found: dict[str, Any] = {}
    for name, some in told["problems"].items():
        if name == "text":
            continue
        asked = [Question(Problem(each["prompt"], each["answer"]), Posed("", "", "")) for each in some[:samples]]
        length = told["lengths"][name]
        first, second = (
            in_batches(write_by_threshold, network, asked, length, batch_tokens).tokens for network in networks
        )
        expected = [each.problem.answer for each in asked]
        right = [sum(a == b for a, b in zip(written, expected, strict=True)) for written in (first, second)]
        same = sum(a == b for a, b in zip(first, second, strict=True))
        found[name] = {"problems": len(asked), "right": right, "same": same}
    bytes_of = [sum(file.stat().st_size for file in path.glob("model*.safetensors")) for path in (one, other)]
    return {"levels": found, "bytes": bytes_of}


def shorten_problems(directory: Path, count: int) -> None:
    """Keep, in problems.json, the first problems of each level that can tell, and what the card says of them true."""
    path, card = directory / "problems.json", directory / "README.md"
    told, tasks = read_json(path, "file of problems"), read_json(directory / "evaluation.json", "evaluation")["tasks"]
    kept = [name for name in told["problems"] if name in tasks and tasks[name]["verdict"] == "can tell"]
    write_problem_file(
        path,
        {name: [Problem(**one) for one in told["problems"][name][:count]] for name in kept},
        {name: told["lengths"][name] for name in kept},
        told["provenance"],
    )
    text = card.read_text(encoding="utf-8")
    write_text(card, text.replace(ALL_PROBLEMS, f"the first {count} problems of the levels that can tell."))


def main(
    checkpoint: Annotated[Path, typer.Option(help="The directory that training.family wrote.")],
    out: Annotated[Path, typer.Option(help="The directory to write.")],
    samples: Annotated[
        int, typer.Option(min=1, help="Pictures, or problems of each level, to measure the loss with.")
    ] = 40,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of text that are computed at once.")] = 65_536,
    problems: Annotated[
        int | None, typer.Option(min=1, help="Text: store only so many problems, of the levels that can tell.")
    ] = None,
    device: Device = default_device(),
    seed: Seed = 0,
) -> None:
    """Write a checkpoint in 8 bits, and measure the loss."""
    if out.resolve() == checkpoint.resolve() or out.exists():
        raise UsageError(f"{out} is there already: the original is needed to measure the loss.")
    shutil.copytree(checkpoint, out, ignore=shutil.ignore_patterns("model*.safetensors*"))
    opened = open_checkpoint(checkpoint)
    text = is_text(load(str(checkpoint)))
    save_shards(out, stored({key: opened.read(key) for key in opened.shapes}, text), "model{suffix}.safetensors")
    measured = (
        measure_text(checkpoint, out, samples, batch_tokens, device)
        if text
        else measure(checkpoint, out, samples, seed, device)
    )
    found = {**measured, "provenance": provenance(device, seed=seed)}
    write_json(out / "quantised.json", found)
    card = (out / "README.md").read_text(encoding="utf-8")
    record = read_json(out / "quantised.json", "record of 8 bits")
    section = quantised_text_section(record) if text else quantised_section(record)
    write_text(out / "README.md", card.replace("\n## Limits", f"\n{section}\n## Limits", 1))
    if text and problems is not None:
        shorten_problems(out, problems)
    print({key: value for key, value in found.items() if key != "provenance"})


if __name__ == "__main__":
    run(main)
