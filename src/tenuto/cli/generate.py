"""`tenuto generate`: pictures by class or caption, or text after a prompt, with a schedule or without."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenuto.cli.app import MOST, PERIODS, PERIODS_HELP, AsJson, Device, ModelName, Seed, app, period, real_text
from tenuto.cli.generation_record import Record, claimed

if TYPE_CHECKING:
    from tenuto.models import Model
    from tenuto.runtime.executor import Executor
    from tenuto.scheduling.schedule import Schedule

Mode = Literal["auto", "eager", "skip", "jagged"]
Solver = Literal["ddim", "dpm++"]
STEPS = 50  # of pictures; text takes a step for each token
LENGTH = 64  # of text, in tokens
ASKED_WRONGLY = {
    "class": "draws classes, not captions: use --class",
    "caption": "draws captions, not classes: use --prompt instead of --class",
    "prompt": "writes text and knows no classes: leave --class out",
}
NOT_ASKED = {
    "caption": 'draws captions: say which, for instance --prompt "a photo of a red car"',
    "prompt": "writes text: give it a beginning with --prompt",
}


@app.command(
    epilog='Example: tenuto generate tiny-dit --schedule schedule.json --class 9 --class "Bag" -o pictures'
    ' · tenuto generate small-llada --prompt "close: ([{ ->" --length 16 --parallel 0.9'
)
def generate(
    model: ModelName,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Directory for the results.")] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="A schedule file. Without one, every step computes everything.")
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Pictures, instead of a schedule: how many steps evaluate the network."),
    ] = None,
    quality: Annotated[
        float | None,
        typer.Option(help="Pictures, instead of a schedule: target PSNR to the full run, in dB."),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="A class by number or name; repeat for more. Default: one of each."),
    ] = None,
    prompts: Annotated[
        list[str] | None,
        typer.Option("--prompt", callback=real_text, help="A caption to draw, or text to continue; repeat for more."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=MOST, help="How many of each.")] = 1,
    steps: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Steps. Default: the schedule's, else 50; for text one for each token."),
    ] = None,
    guidance: Annotated[
        float | None, typer.Option(help="Classifier-free guidance. Default: what suits the model.")
    ] = None,
    solver: Annotated[Solver | None, typer.Option(help="Pictures: the solver. Default: ddim.")] = None,
    length: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Text: how many tokens to write. Default: 64.")
    ] = None,
    block_length: Annotated[
        int | None, typer.Option(min=1, help="Text: tokens of a block. Default: the schedule's.")
    ] = None,
    parallel: Annotated[
        float | None,
        typer.Option(help="Text: write all tokens of at least this probability at once, for example 0.9."),
    ] = None,
    factor: Annotated[
        float | None,
        typer.Option(
            help="Text, instead of --parallel: the factor rule. More tokens at once need higher probabilities."
        ),
    ] = None,
    every: Annotated[
        Any,
        typer.Option(
            parser=period,
            metavar=PERIODS,
            help="Text, with --parallel or --factor: compute all positions at every N-th evaluation, else a block. "
            f"{PERIODS_HELP}",
        ),
    ] = None,
    sliding: Annotated[
        bool,
        typer.Option(
            "--sliding",
            help="Text, with --parallel or --factor: write the leftmost masks of the whole text instead of a "
            "block, as many as a block has.",
        ),
    ] = False,
    temperature: Annotated[float | None, typer.Option(help="Text: 0, the default, takes the likeliest token.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Text: wrap prompts in the model's chat template.")] = False,
    seed: Seed = 0,
    batch: Annotated[
        int, typer.Option(min=1, max=65_536, help="How many at a time. The results do not depend on it.")
    ] = 16,
    vae: Annotated[Path | None, typer.Option(help="A diffusers VAE directory, for latent models.")] = None,
    mode: Annotated[
        Mode, typer.Option(help="How the schedule is run. auto: CUDA graphs (jagged) on a GPU, else skip.")
    ] = "auto",
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the network's branches first.")] = False,
    memory: Annotated[
        int | None,
        typer.Option(min=0, help="Limit of kept values for a batch, in MiB. The command says what it gave up."),
    ] = None,
    offload: Annotated[
        bool,
        typer.Option("--offload", help="On a GPU: keep single units in the host's memory. This takes longer."),
    ] = False,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Make pictures or text, with a schedule or without."""
    from tenuto import deciding
    from tenuto.cli.app import check_device
    from tenuto.errors import UsageError
    from tenuto.files import check_writable
    from tenuto.models import is_pipeline, load
    from tenuto.sampling.masked import sampling_for
    from tenuto.sampling.pictures import Sampling, every_step
    from tenuto.sampling.prompts import check_length
    from tenuto.scheduling.schedule import load_schedule
    from tenuto.text import EVERY

    chosen, place = load_schedule(schedule) if schedule else None, check_device(device)
    if output is not None:
        check_writable(output / "generation.json", reads=[model, *([schedule] if schedule else [])])
    drawing: dict[str, Any] = {"solver": solver, "vae": vae, "memory": memory, "offload": offload or None}
    if sum(one is not None for one in (chosen, quality, evaluations)) > 1:
        raise UsageError("--schedule, --evaluations and --quality each decide which steps are computed: give one.")
    writing: dict[str, Any] = {
        "length": length,
        "block-length": block_length,
        "parallel": parallel,
        "factor": factor,
        "every": every,
        "sliding": sliding or None,
        "temperature": temperature,
        "chat": chat or None,
    }
    # The first seed and the work are the same for every kind of model; steps are added when they are known.
    record = Record(output, as_json, {"device": device, "model": model, "seed": seed}, schedule, chosen)
    if is_pipeline(Path(model).expanduser()):  # of a hub id only the denoiser is fetched
        _refuse("a diffusers pipeline", model, **drawing, **writing)
        wanted = _asked(model, "caption", classes, prompts, count)
        record.take(_needed(output), steps, STEPS, guidance=guidance)
        asked = {"quality": quality, "evaluations": evaluations}
        return _draw_with_pipeline(record, wanted, seed, place, asked, mode=mode, compiled=compiled)
    loaded = load(model, device=place)
    family = loaded.architecture
    guidance = loaded.guidance if guidance is None else guidance
    how: dict[str, Any] = {"mode": mode, "compiled": compiled}
    if family.asks_for == "prompt":
        _refuse("a language model", model, **drawing, quality=quality, evaluations=evaluations)
        length = LENGTH if length is None else length
        check_length(loaded, length)
        in_parallel = parallel is not None or factor is not None
        if every is not None and (not in_parallel or chosen is not None):
            raise UsageError("--every goes with --parallel or --factor, and without --schedule.")
        if in_parallel and chosen is None:
            every = EVERY if every is None else every
            chosen = record.schedule = deciding.schedule(loaded, length, every=every, rows="block")
        told = {"parallel": parallel, "factor": factor, "every": every, "sliding": sliding or None}
        record.take(output, steps, length, **{name: value for name, value in told.items() if value is not None})
        sampling = sampling_for(
            loaded,
            steps=record.steps,
            length=length,
            block_length=block_length or _block_length(length, chosen, in_parallel),
            parallel=parallel,
            factor=factor,
            sliding=sliding,
            temperature=temperature or 0.0,
            guidance=guidance,
            seed=seed,
        )
        texts = _asked(loaded.name, "prompt", classes, prompts, count)
        return _write(record, loaded, texts, sampling, batch, chat, **how)
    _refuse("a model that draws", model, **writing)
    record.take(_needed(output), steps, STEPS, solver=solver or "ddim", guidance=guidance)
    wanted = _to_draw(loaded, classes, prompts, count)
    if evaluations is not None:
        chosen = record.schedule = deciding.schedule(loaded, record.steps, evaluations=evaluations)
    plan = chosen if quality is None else every_step(loaded, record.steps)
    executor = _executor(loaded, plan, None if memory is None else memory * 2**20, offload, **how)
    by = Sampling(steps=record.steps, solver=solver or "ddim", guidance=guidance, quality=quality)
    return _draw(record, loaded, wanted, by, batch, seed, vae, executor)


def _block_length(length: int, schedule: "Schedule | None", in_parallel: bool) -> int:
    """With parallel decoding, the schedule says nothing about blocks: 32 tokens if that divides the length."""
    from tenuto.sampling.masked import block_length_for
    from tenuto.text import BLOCK

    return BLOCK if in_parallel and length % BLOCK == 0 else block_length_for(length, schedule)


def _draw(
    record: Record,
    model: "Model",
    wanted: list[Any],
    sampling: Any,
    batch: int,
    seed: int,
    vae_path: Path | None,
    executor: "Executor",
) -> None:
    from tenuto.cli.console import counted, progress, say, tell
    from tenuto.sampling.pictures import decode, generate_batches, vae_of
    from tenuto.showing.images import save_images

    assert record.folder is not None
    asks_for = model.architecture.asks_for
    vae = vae_of(model, vae_path)
    images: list[dict[str, Any]] = []
    with claimed(record.folder), progress("Generating", len(wanted) * sampling.steps) as advance:
        batches = generate_batches(
            model,
            wanted if asks_for == "class" else None,
            captions=wanted if asks_for == "caption" else None,
            executor=executor,
            seed=seed,
            sampling=sampling,
            batch=batch,
            progress=advance,
            told=lambda count, near: record.told.append((count, near)),
        )
        for samples in batches:
            first = len(images)
            part = wanted[first : first + len(samples)]
            endings = [f"-class{one}" if asks_for == "class" else "" for one in part]
            names = [f"{first + i:05d}{ending}" for i, ending in enumerate(endings)]
            for i, path in enumerate(save_images(decode(samples, vae) if vae else samples, record.folder, names)):
                images.append({"file": path.name, asks_for: part[i], "seed": seed + first + i})
            record.write(images=images)
    record.finish(f"{counted(len(images), 'picture')} in {record.folder}", tell)
    report = executor.report()
    if report.given_up:
        say(f"To stay within --memory: {report.given_up}.")


def _executor(model: "Model", schedule: "Schedule | None", memory: int | None, offload: bool, **how: Any) -> "Executor":
    """What runs the model, within so many bytes if --memory says how many."""
    from tenuto.errors import UsageError
    from tenuto.laboratory import offered
    from tenuto.runtime.executor import UNITS, executor_for

    if memory is None and not offload:
        return executor_for(model.network, schedule, **how)
    option = "--offload" if offload else "--memory"
    if schedule is None or schedule.keep not in UNITS:
        raise UsageError(f"{option} is for a schedule that keeps single units (branch, update): others keep little.")
    if offload and memory is not None:
        raise UsageError("--memory bounds what is kept on the device, and with --offload nothing is: give one.")
    if offload and model.device.type != "cuda":
        raise UsageError("--offload is for a GPU, whose memory it spares.")
    made: Executor = offered("executor")(model.network, schedule, memory=memory, offload=offload, **how)
    return made


def _draw_with_pipeline(
    record: Record, wanted: list[str], seed: int, device: Any, asked: dict[str, Any], **how: Any
) -> None:
    """The diffusers pipeline itself draws. Its denoiser follows the schedule, or what was asked of `tenuto.enable`."""
    import torch
    from diffusers import DiffusionPipeline

    from tenuto.cli.console import counted, progress, tell
    from tenuto.errors import CheckpointError
    from tenuto.pipelines.enable import accelerated, summary
    from tenuto.showing.images import save_image

    assert record.folder is not None
    name, guidance = record.facts["model"], record.facts["guidance"]
    try:
        pipe = DiffusionPipeline.from_pretrained(str(Path(name).expanduser())).to(device)
    except Exception as error:  # a damaged directory makes diffusers fail in many ways
        raise CheckpointError(f"{name} is no pipeline that diffusers can load: {error}") from error
    pipe.set_progress_bar_config(disable=True)
    options = {} if guidance is None else {"guidance_scale": guidance}
    images: list[dict[str, Any]] = []
    held: Any = nullcontext()
    if record.schedule is not None:
        held = accelerated(pipe, schedule=record.schedule, check_weights=True, **how)
    elif any(one is not None for one in asked.values()):
        held = accelerated(pipe, **asked, **how)
    with held, claimed(record.folder), progress("Generating", len(wanted)) as advance:
        for i, prompt in enumerate(wanted):
            generator = torch.Generator().manual_seed(seed + i)
            picture = pipe(prompt, num_inference_steps=record.steps, generator=generator, **options).images[0]
            save_image(picture, record.folder / f"{i:05d}.png")
            images.append({"file": f"{i:05d}.png", "caption": prompt, "seed": seed + i})
            if record.schedule is None and not isinstance(held, nullcontext):
                last = summary(pipe)
                record.told.append((last.computed_steps, last.estimated))
            record.write(images=images)
            advance(1)
    record.finish(f"{counted(len(images), 'picture')} in {record.folder}", tell)


def _write(
    record: Record, model: "Model", prompts: list[str], sampling: Any, batch: int, chat: bool, **how: Any
) -> None:
    from tenuto.cli.console import counted, out, progress, quoted, say
    from tenuto.files import write_text
    from tenuto.sampling.masked import generate_text

    texts: list[dict[str, str]] = []
    place = claimed(record.folder) if record.folder else nullcontext()
    evaluations: list[int] = []  # of each batch

    def advanced(rows: int) -> None:
        evaluations[-1] += 1
        advance(rows)

    with place, progress("Writing", len(prompts) * sampling.steps) as advance:
        for start in range(0, len(prompts), batch):
            part = prompts[start : start + batch]
            evaluations.append(0)
            written = generate_text(
                model,
                part,
                schedule=record.schedule,
                chat=chat,
                sampling=replace(sampling, seed=sampling.seed + start),
                batch=batch,
                progress=advanced,
                **how,
            )
            if sampling.in_parallel:
                record.steps = max(evaluations)  # which is known only now
            texts += [{"prompt": prompt, "text": text} for prompt, text in zip(part, written, strict=True)]
            record.write(texts=texts)
            if record.folder is not None:
                pieces = [f"{one['prompt']}【{one['text']}】\n" for one in texts]
                write_text(record.folder / "text.txt", "\n".join(pieces))
    for one in [] if record.as_json else texts:
        out.print(f"[dim]{quoted(one['prompt'])}[/]{quoted(one['text'])}", soft_wrap=True)
    record.finish(f"{counted(len(texts), 'text')} of at most {counted(sampling.length, 'token')}", say)


def _refuse(what: str, model: str, **options: Any) -> None:
    """An option that would have no effect is refused, never ignored."""
    from tenuto.errors import UsageError

    for option, value in options.items():
        if value is not None:
            raise UsageError(f"--{option} has no effect on {what}, and {model} is one.")


def _needed(output: Path | None) -> Path:
    from tenuto.errors import UsageError

    if output is None:
        raise UsageError("Name a directory for the pictures with -o.")
    return output


def _asked(name: str, asks_for: str, classes: list[str] | None, prompts: list[str] | None, count: int) -> list[str]:
    """What to make, `count` of each. A model that is asked in the wrong way says how it wants to be asked."""
    from tenuto.errors import UsageError

    wanted, others = (classes, prompts) if asks_for == "class" else (prompts, classes)
    if others:
        raise UsageError(f"{name} {ASKED_WRONGLY[asks_for]}.")
    if not wanted and asks_for in NOT_ASKED:
        raise UsageError(f"{name} {NOT_ASKED[asks_for]}.")
    return [one for one in wanted or [] for _ in range(count)]


def _to_draw(model: "Model", classes: list[str] | None, prompts: list[str] | None, count: int) -> list[Any]:
    """Classes or captions, as the model asks; by default one of each class."""
    from tenuto.errors import UsageError
    from tenuto.sampling.pictures import class_index

    if model.architecture.asks_for == "class":
        every = [str(one) for one in range(min(model.config.classes, 10))]
        wanted = _asked(model.name, "class", classes or (None if prompts else every), prompts, count)
        return [class_index(model, one) for one in wanted]
    if model.path is None or not (model.path / "text_encoder").is_dir():
        raise UsageError(
            f"{model.name} is a UNet alone: it can be scored and scheduled, but to draw it needs its whole diffusers "
            "pipeline's directory."
        )
    return _asked(model.name, "caption", classes, prompts, count)
