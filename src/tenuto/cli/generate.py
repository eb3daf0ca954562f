"""`tenuto generate`: pictures by class or caption, or text after a prompt, with a schedule or without."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tenuto.cli.console import err, out, print_json, progress
from tenuto.errors import UsageError
from tenuto.files import write_json, write_text
from tenuto.models import Model, find, load
from tenuto.provenance import provenance
from tenuto.report.images import save_image, save_images
from tenuto.samplers.diffusion import Sampling, decode, generate
from tenuto.schedules import Schedule, load_schedule

GUIDANCE = {"class": 1.5, "caption": 3.0, "prompt": 0.0}
STEPS = {"class": 50, "caption": 50, "prompt": 64}


@dataclass(frozen=True)
class Request:
    """The command line, as given."""

    model: str
    output: Path | None
    schedule_path: Path | None
    classes: Sequence[str]
    prompts: Sequence[str]
    count: int
    steps: int | None
    guidance: float | None
    solver: Any
    length: int
    block_length: int | None
    temperature: float
    chat: bool
    seed: int
    batch: int
    vae: Path | None
    device: str
    as_json: bool


def run(request: Request) -> None:
    for name in ("count", "batch"):
        if getattr(request, name) < 1:
            raise UsageError(f"--{name} must be at least 1, not {getattr(request, name)}.")
    schedule = load_schedule(request.schedule_path) if request.schedule_path else None
    device = check_device(request.device)
    if (find(request.model) / "model_index.json").exists():
        return _pipeline_pictures(request, schedule, device)
    model = load(request.model, device=device)
    if model.architecture.asks_for == "prompt":
        return _text(request, model, schedule)
    return _pictures(request, model, schedule)


def _pictures(request: Request, model: Model, schedule: Schedule | None) -> None:
    channels, vae, output = model.config.sample_shape[0], request.vae, _output(request)
    if channels not in (1, 3) and vae is None:
        raise UsageError(f"{model.name} makes latents of {channels} channels, not pictures: name its VAE with --vae.")
    asks_for = model.architecture.asks_for
    guidance = GUIDANCE[asks_for] if request.guidance is None else request.guidance
    sampling = Sampling(steps=_steps(request, asks_for, schedule), solver=request.solver, guidance=guidance)
    once: list[Any] = _classes(model, request) if asks_for == "class" else _captions(model, request)
    wanted = [one for one in once for _ in range(request.count)]
    started = time.perf_counter()
    images: list[dict[str, Any]] = []
    with progress("Generating", len(wanted) * sampling.steps) as advance:
        # Batch by batch, so that Ctrl-C keeps the pictures that were finished.
        for start, part in _parts(wanted, request.batch):
            samples = generate(
                model,
                **{"classes" if asks_for == "class" else "captions": part},
                seed=request.seed + start,
                sampling=sampling,
                schedule=schedule,
                batch=request.batch,
                progress=advance,
            )
            samples = decode(samples, vae) if vae else samples
            names = [f"{start + i:05d}" + (f"-class{one}" if asks_for == "class" else "") for i, one in enumerate(part)]
            for i, path in enumerate(save_images(samples, output, names)):
                images.append({"file": path.name, asks_for: part[i], "seed": request.seed + start + i})
    _finish(request, schedule, sampling.steps, started, images, solver=sampling.solver, guidance=guidance)


def _pipeline_pictures(request: Request, schedule: Schedule | None, device: torch.device) -> None:
    """A diffusers pipeline's directory: the pipeline itself draws, its denoiser under the schedule."""
    from contextlib import nullcontext

    from diffusers import DiffusionPipeline

    from tenuto.integrations.diffusers import scheduled

    output, prompts = _output(request), list(request.prompts)
    if not prompts or request.classes:
        raise UsageError(f"{request.model} draws captions: say which with --prompt.")
    pipe = DiffusionPipeline.from_pretrained(str(find(request.model))).to(device)
    pipe.set_progress_bar_config(disable=True)
    steps = _steps(request, "caption", schedule)
    options = {} if request.guidance is None else {"guidance_scale": request.guidance}
    wanted = [prompt for prompt in prompts for _ in range(request.count)]
    started, images = time.perf_counter(), []
    with progress("Generating", len(wanted)) as advance:
        for i, prompt in enumerate(wanted):
            generator = torch.Generator().manual_seed(request.seed + i)
            with scheduled(pipe, schedule, check_weights=True) if schedule else nullcontext():
                picture = pipe(prompt, num_inference_steps=steps, generator=generator, **options).images[0]
            save_image(picture, output / f"{i:05d}.png")
            images.append({"file": f"{i:05d}.png", "caption": prompt, "seed": request.seed + i})
            advance(1)
    _finish(request, schedule, steps, started, images, guidance=request.guidance)


def _text(request: Request, model: Model, schedule: Schedule | None) -> None:
    from tenuto.samplers.masked import MaskedSampling, generate_text

    if not request.prompts or request.classes:
        raise UsageError(f"{model.name} writes text: give it something to write after with --prompt.")
    steps = _steps(request, "prompt", schedule)
    sampling = MaskedSampling(
        steps=steps,
        length=request.length,
        block_length=request.block_length or request.length,
        temperature=request.temperature,
        guidance=GUIDANCE["prompt"] if request.guidance is None else request.guidance,
        seed=request.seed,
    )
    prompts = [prompt for prompt in request.prompts for _ in range(request.count)]
    started = time.perf_counter()
    with progress("Writing", len(prompts) * steps) as advance:
        texts = generate_text(
            model,
            prompts,
            schedule=schedule,
            chat=request.chat,
            sampling=sampling,
            batch=request.batch,
            progress=advance,
        )
    seconds = time.perf_counter() - started
    written = [{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts, strict=True)]
    summary = _summary(request, schedule, steps, seconds, texts=written)
    if request.output is not None:
        write_json(request.output / "generation.json", summary)
        write_text(
            request.output / "text.txt", "\n\n".join(f"{one['prompt']}【{one['text']}】" for one in written) + "\n"
        )
    if request.as_json:
        print_json(summary)
        return
    for one in written:
        out.print(f"[dim]{_escaped(one['prompt'])}[/]{_escaped(one['text'])}", soft_wrap=True)
    err.print(f"{len(texts)} text(s) of at most {request.length} tokens, {_how(schedule, steps, seconds)}")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _output(request: Request) -> Path:
    if request.output is None:
        raise UsageError("Name a directory for the pictures with -o.")
    return request.output


def _steps(request: Request, asks_for: str, schedule: Schedule | None) -> int:
    if request.steps is not None:
        return request.steps
    return schedule.steps if schedule else STEPS[asks_for]


def _parts(wanted: list[Any], batch: int) -> Iterator[tuple[int, list[Any]]]:
    for start in range(0, len(wanted), batch):
        yield start, wanted[start : start + batch]


def _classes(model: Model, request: Request) -> list[int]:
    if request.prompts:
        raise UsageError(f"{model.name} draws classes, not captions: use --class.")
    return [class_index(model, name) for name in request.classes] or list(range(min(model.config.classes, 10)))


def _captions(model: Model, request: Request) -> list[str]:
    if not request.prompts or request.classes:
        raise UsageError(f'{model.name} draws captions: say which, for instance --prompt "a photo of a red car".')
    return list(request.prompts)


def _finish(
    request: Request, schedule: Schedule | None, steps: int, started: float, images: list[Any], **extra: Any
) -> None:
    seconds = time.perf_counter() - started
    summary = _summary(request, schedule, steps, seconds, **extra, images=images)
    write_json(_output(request) / "generation.json", summary)
    if request.as_json:
        print_json(summary)
    else:
        out.print(f"{len(images)} pictures in {request.output} ({_how(schedule, steps, seconds)})")


def _summary(request: Request, schedule: Schedule | None, steps: int, seconds: float, **extra: Any) -> dict[str, Any]:
    return provenance(
        model=request.model,
        schedule=str(request.schedule_path) if request.schedule_path else None,
        work=schedule.budget if schedule else 1.0,
        flop_work=schedule.flop_budget if schedule else 1.0,
        steps=steps,
        seed=request.seed,
        seconds=round(seconds, 3),
        **extra,
    )


def _how(schedule: Schedule | None, steps: int, seconds: float) -> str:
    work = "" if schedule is None else f", {schedule.budget:.0%} of the unit-steps computed"
    return f"{seconds:.1f} s, {steps} steps{work}"


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
