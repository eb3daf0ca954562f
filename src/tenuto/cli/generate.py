"""`tenuto generate`: pictures, with a schedule or without."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tenuto.cli.console import out, print_json, progress
from tenuto.errors import UsageError
from tenuto.files import write_json
from tenuto.models import Model, load
from tenuto.provenance import provenance
from tenuto.report.images import save_images
from tenuto.samplers.diffusion import Sampling, decode, generate
from tenuto.schedules import load_schedule


def run(
    model_name: str,
    output: Path,
    *,
    schedule_path: Path | None,
    classes: Sequence[str],
    count: int,
    steps: int | None,
    guidance: float,
    solver: Any,
    seed: int,
    batch: int,
    vae: Path | None,
    device: str,
    as_json: bool,
) -> None:
    schedule = load_schedule(schedule_path) if schedule_path else None
    sampling = Sampling(steps=steps or (schedule.steps if schedule else 50), solver=solver, guidance=guidance)
    if count < 1:
        raise UsageError(f"--count must be at least 1, not {count}.")
    if batch < 1:
        raise UsageError(f"--batch must be at least 1, not {batch}.")
    model = load(model_name, device=check_device(device))
    if model.config.sample_shape[0] not in (1, 3) and vae is None:
        raise UsageError(
            f"{model_name} makes latents of {model.config.sample_shape[0]} channels, not pictures: name its VAE with --vae."
        )
    wanted = [class_index(model, name) for name in classes] or list(range(min(model.config.classes, 10)))
    labels = [label for label in wanted for _ in range(count)]
    started = time.perf_counter()
    paths: list[Path] = []
    with progress("Generating", len(labels) * sampling.steps) as advance:
        # Batch by batch, so that Ctrl-C keeps the pictures that were finished.
        for start in range(0, len(labels), batch):
            part = labels[start : start + batch]
            samples = generate(
                model, part, seed=seed + start, sampling=sampling, schedule=schedule, batch=batch, progress=advance
            )
            samples = decode(samples, vae) if vae else samples
            paths += save_images(samples, output, [f"{start + i:05d}-class{label}" for i, label in enumerate(part)])
    seconds = time.perf_counter() - started
    summary = provenance(
        model=model_name,
        schedule=str(schedule_path) if schedule_path else None,
        work=schedule.budget if schedule else 1.0,
        flop_work=schedule.flop_budget if schedule else 1.0,
        steps=sampling.steps,
        solver=solver,
        guidance=guidance,
        seed=seed,
        seconds=round(seconds, 3),
        images=[
            {"file": p.name, "class": c, "seed": seed + i} for i, (p, c) in enumerate(zip(paths, labels, strict=True))
        ],
    )
    write_json(output / "generation.json", summary)
    if as_json:
        print_json(summary)
    else:
        work = "" if schedule is None else f", {schedule.budget:.0%} of the unit-steps computed"
        out.print(f"{len(paths)} pictures in {output} ({seconds:.1f} s, {sampling.steps} steps{work})")


def class_index(model: Model, name: str) -> int:
    if name.isdigit():
        return int(name)
    found = [i for i, label in enumerate(model.labels) if label.lower() == name.lower()]
    if not found:
        known = ", ".join(model.labels) if model.labels else f"numbers 0 to {model.config.classes - 1} only"
        raise UsageError(f"{model.name} knows no class {name!r}; its classes are: {known}.")
    return found[0]


def check_device(device: str) -> torch.device:
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"--device {device!r} is no device torch knows (cpu, cuda, cuda:1, mps).") from error
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {device} was asked for, but torch {torch.__version__} sees no CUDA device here.")
    return wanted
