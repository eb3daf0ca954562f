"""`tenuto generate`: pictures by class or caption, or text after a prompt, with a schedule or without."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape

from tenuto.cli.console import out, print_json, progress, say
from tenuto.errors import CheckpointError, UsageError, first_line
from tenuto.executor import Executor, executor_for
from tenuto.files import check_writable, write_json, write_text
from tenuto.models import Model, find, load
from tenuto.provenance import provenance
from tenuto.report.images import save_image, save_images
from tenuto.samplers.diffusion import Sampling, class_index, decode, generate, load_vae
from tenuto.samplers.masked import block_length_for
from tenuto.schedules import Schedule, load_schedule

STEPS = 50  # of pictures; text takes a step for each token
LENGTH = 64  # of text, in tokens


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
    length: int | None
    block_length: int | None
    temperature: float | None
    chat: bool
    seed: int
    batch: int
    vae: Path | None
    mode: Any
    compiled: bool
    memory: int | None  # MiB
    device: str
    as_json: bool


def run(request: Request) -> None:
    for name in ("count", "batch"):
        if getattr(request, name) < 1:
            raise UsageError(f"--{name} must be at least 1, not {getattr(request, name)}.")
    schedule = load_schedule(request.schedule_path) if request.schedule_path else None
    device = check_device(request.device)
    if (find(request.model) / "model_index.json").exists() and (find(request.model) / "unet").is_dir():
        _refuse(request, "a diffusers pipeline", "solver", "vae", "memory", *TEXT_ONLY)
        return _pipeline_pictures(request, schedule, device)
    model = load(request.model, device=device)
    if model.architecture.asks_for == "prompt":
        _refuse(request, "a language model", "solver", "vae", "memory")
        return _text(request, model, schedule)
    _refuse(request, "a model that draws", *TEXT_ONLY)
    return _pictures(request, model, schedule)


TEXT_ONLY = ("length", "block_length", "temperature", "chat")


def _refuse(request: Request, what: str, *options: str) -> None:
    """Options that would have no effect are refused, never dropped."""
    for option in options:
        if getattr(request, option) not in (None, False):
            raise UsageError(f"--{option.replace('_', '-')} means nothing to {what}, which {request.model} is.")


def _pictures(request: Request, model: Model, schedule: Schedule | None) -> None:
    channels, output = model.config.sample_shape[0], _output(request)
    if model.architecture.asks_for == "caption" and not (find(request.model) / "text_encoder").is_dir():
        raise UsageError(
            f"{model.name} is a UNet alone: it can be scored and scheduled, but to draw it needs its whole diffusers "
            "pipeline's directory."
        )
    beside = find(request.model) / "vae"  # a pipeline's directory has it
    vae_path = request.vae or (beside if beside.is_dir() else None)
    if channels not in (1, 3) and vae_path is None:
        raise UsageError(f"{model.name} makes latents of {channels} channels, not pictures: name its VAE with --vae.")
    vae = load_vae(vae_path, model.device) if vae_path else None
    asks_for = model.architecture.asks_for
    guidance = model.architecture.guidance if request.guidance is None else request.guidance
    sampling = Sampling(steps=_steps(request, STEPS, schedule), solver=request.solver or "ddim", guidance=guidance)
    once: list[Any] = _classes(model, request) if asks_for == "class" else _captions(model, request)
    wanted = [one for one in once for _ in range(request.count)]
    check_writable(output / "generation.json", reads=_read(request))
    started = time.perf_counter()
    images: list[dict[str, Any]] = []
    extra = {"solver": sampling.solver, "guidance": guidance}
    executor = _bounded(request, model, schedule)
    with progress("Generating", len(wanted) * sampling.steps) as advance:
        # Batch by batch, so that Ctrl-C keeps the pictures that were finished.
        for start, part in _parts(wanted, request.batch):
            samples = generate(
                model,
                part if asks_for == "class" else None,
                captions=part if asks_for == "caption" else None,
                executor=executor,
                seed=request.seed + start,
                sampling=sampling,
                batch=request.batch,
                progress=advance,
            )
            samples = decode(samples, vae) if vae else samples
            names = [f"{start + i:05d}" + (f"-class{one}" if asks_for == "class" else "") for i, one in enumerate(part)]
            for i, path in enumerate(save_images(samples, output, names)):
                images.append({"file": path.name, asks_for: part[i], "seed": request.seed + start + i})
            _note(request, schedule, sampling.steps, started, images, **extra)
    _finish(request, schedule, sampling.steps, started, images, **extra)
    if lost := executor.report().given_up:
        say(f"To keep no more than {request.memory} MiB: {lost}.")


def _bounded(request: Request, model: Model, schedule: Schedule | None) -> Executor:
    """What runs the model, within --memory if that was said."""
    if request.memory is None:
        return executor_for(model.network, schedule, request.mode, request.compiled)
    if schedule is None:
        raise UsageError("--memory bounds what a schedule keeps; without --schedule nothing is kept.")
    bound = request.memory * 2**20
    return Executor(model.network, schedule, mode=request.mode, compiled=request.compiled, memory=bound)


def _pipeline_pictures(request: Request, schedule: Schedule | None, device: torch.device) -> None:
    """A diffusers pipeline's directory: the pipeline itself draws, its denoiser under the schedule."""
    from contextlib import nullcontext

    from diffusers import DiffusionPipeline

    from tenuto.integrations.diffusers import scheduled

    output, prompts = _output(request), list(request.prompts)
    if not prompts or request.classes:
        raise UsageError(f"A diffusers pipeline such as {request.model} draws captions here: say which with --prompt.")
    try:
        pipe = DiffusionPipeline.from_pretrained(str(find(request.model))).to(device)
    except Exception as error:  # whatever a damaged directory makes diffusers stumble over
        raise CheckpointError(f"{request.model} is no pipeline that diffusers can load: {error}") from error
    pipe.set_progress_bar_config(disable=True)
    steps = _steps(request, STEPS, schedule)
    options = {} if request.guidance is None else {"guidance_scale": request.guidance}
    wanted = [prompt for prompt in prompts for _ in range(request.count)]
    started, images = time.perf_counter(), []
    how = {"mode": request.mode, "compiled": request.compiled}
    held = scheduled(pipe, schedule, check_weights=True, **how) if schedule else nullcontext()
    with held, progress("Generating", len(wanted)) as advance:
        for i, prompt in enumerate(wanted):
            generator = torch.Generator().manual_seed(request.seed + i)
            picture = pipe(prompt, num_inference_steps=steps, generator=generator, **options).images[0]
            save_image(picture, output / f"{i:05d}.png")
            images.append({"file": f"{i:05d}.png", "caption": prompt, "seed": request.seed + i})
            _note(request, schedule, steps, started, images, guidance=request.guidance)
            advance(1)
    _finish(request, schedule, steps, started, images, guidance=request.guidance)


def _text(request: Request, model: Model, schedule: Schedule | None) -> None:
    from tenuto.samplers.masked import MaskedSampling, generate_text

    if request.classes:
        raise UsageError(f"{model.name} writes text and knows no classes: --class is not for it.")
    if not request.prompts:
        raise UsageError(f"{model.name} writes text: give it something to write after with --prompt.")
    length = LENGTH if request.length is None else request.length
    steps = _steps(request, length, schedule)
    sampling = MaskedSampling(
        steps=steps,
        length=length,
        block_length=block_length_for(length, schedule) if request.block_length is None else request.block_length,
        temperature=request.temperature or 0.0,
        guidance=model.architecture.guidance if request.guidance is None else request.guidance,
        remasking=model.architecture.remasking,
    )
    if request.output is not None:
        check_writable(request.output / "text.txt", reads=_read(request))
    prompts = [prompt for prompt in request.prompts for _ in range(request.count)]
    started = time.perf_counter()
    written: list[dict[str, str]] = []
    with progress("Writing", len(prompts) * steps) as advance:
        # Batch by batch, so that Ctrl-C keeps what was finished.
        for start, part in _parts(prompts, request.batch):
            texts = generate_text(
                model,
                part,
                schedule=schedule,
                mode=request.mode,
                compiled=request.compiled,
                chat=request.chat,
                sampling=replace(sampling, seed=request.seed + start),
                batch=request.batch,
                progress=advance,
            )
            written += [{"prompt": prompt, "text": text} for prompt, text in zip(part, texts, strict=True)]
            if request.output is not None:
                pieces = [f"{one['prompt']}【{one['text']}】\n" for one in written]
                write_text(request.output / "text.txt", "\n".join(pieces))
    seconds = time.perf_counter() - started
    summary = _summary(request, schedule, steps, seconds, texts=written)
    if request.output is not None:
        write_json(request.output / "generation.json", summary)
    if request.as_json:
        print_json(summary)
        return
    for one in written:
        out.print(f"[dim]{escape(one['prompt'])}[/]{escape(one['text'])}", soft_wrap=True)
    say(f"{len(written)} text(s) of at most {length} tokens, {_how(schedule, steps, seconds)}")


def _read(request: Request) -> list[str | Path]:
    """What no output may overwrite."""
    return [request.model, *([request.schedule_path] if request.schedule_path else [])]


def _output(request: Request) -> Path:
    if request.output is None:
        raise UsageError("Name a directory for the pictures with -o.")
    return request.output


def _steps(request: Request, default: int, schedule: Schedule | None) -> int:
    if request.steps is not None:
        return request.steps
    return schedule.steps if schedule else default


def _parts(wanted: list[Any], batch: int) -> Iterator[tuple[int, list[Any]]]:
    for start in range(0, len(wanted), batch):
        yield start, wanted[start : start + batch]


def _classes(model: Model, request: Request) -> list[int]:
    if request.prompts:
        raise UsageError(f"{model.name} draws classes, not captions: use --class.")
    return [class_index(model, name) for name in request.classes] or list(range(min(model.config.classes, 10)))


def _captions(model: Model, request: Request) -> list[str]:
    if request.classes:
        raise UsageError(f"{model.name} draws captions, not classes: use --prompt instead of --class.")
    if not request.prompts:
        raise UsageError(f'{model.name} draws captions: say which, for instance --prompt "a photo of a red car".')
    return list(request.prompts)


def _note(
    request: Request, schedule: Schedule | None, steps: int, started: float, images: list[Any], **extra: Any
) -> dict[str, Any]:
    """Write down what was made so far, and return it."""
    seconds = time.perf_counter() - started
    summary = _summary(request, schedule, steps, seconds, **extra, images=images)
    write_json(_output(request) / "generation.json", summary)
    return summary


def _finish(
    request: Request, schedule: Schedule | None, steps: int, started: float, images: list[Any], **extra: Any
) -> None:
    summary = _note(request, schedule, steps, started, images, **extra)
    if request.as_json:
        print_json(summary)
        return
    what = "1 picture" if len(images) == 1 else f"{len(images)} pictures"
    out.print(escape(f"{what} in {request.output} ({_how(schedule, steps, summary['seconds'])})"))


def _summary(request: Request, schedule: Schedule | None, steps: int, seconds: float, **extra: Any) -> dict[str, Any]:
    return provenance(
        device=request.device,
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


def check_device(device: str) -> torch.device:
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"--device {device!r} is no device torch knows (cpu, cuda, cuda:1, mps).") from error
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {device} was asked for, but torch {torch.__version__} sees no CUDA device here.")
    try:
        if wanted.type not in ("cpu", "cuda", "mps"):
            raise UsageError(f"--device {device!r} is none that Tenuto computes on (cpu, cuda, mps).")
        torch.empty(1, device=wanted)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {device} cannot be used here: {first_line(error)}") from error
    return wanted
