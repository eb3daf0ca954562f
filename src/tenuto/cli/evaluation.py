"""`tenuto eval` and its commands, as they are typed."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tenuto.cli.app import MODEL, AsJson, Device, Mode, Solver

evaluation = typer.Typer(
    name="eval",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Evaluate at full size: samples by many processes, pictures against a reference, language tasks, comparisons.",
)


class Precision(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Features(StrEnum):
    inception = "inception"
    own = "own"


Dtype = Annotated[Precision | None, typer.Option(help="Precision to run in. Default: the checkpoint's own.")]


@evaluation.command(
    epilog="Example: torchrun --nproc-per-node 8 -m tenuto.cli eval samples MODEL --samples 50000 --schedule s.json"
    " --device cuda -o run"
)
def samples(
    model: Annotated[str, typer.Argument(help=MODEL)],
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory for the set; shared by all processes.")],
    count: Annotated[int, typer.Option("--samples", min=1, help="How many; each class as often as the others.")],
    schedule: Annotated[Path | None, typer.Option(help="A schedule file; without one, everything is computed.")] = None,
    captions: Annotated[
        Path | None, typer.Option(help="A file of captions, one a line; they come round again.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Network evaluations. Default: the schedule's, else 50.")] = None,
    guidance: Annotated[float | None, typer.Option(help="Classifier-free guidance. Default: the family's.")] = None,
    solver: Annotated[Solver | None, typer.Option(help="How to step from noise to picture. Default: ddim.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**53, help="Seed of the first; the others count up.")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Samples made at a time; part of what the job is.")] = 32,
    dtype: Dtype = None,
    vae: Annotated[Path | None, typer.Option(help="A diffusers VAE directory, for latent models.")] = None,
    png: Annotated[bool, typer.Option("--png", help="Write each picture as a file, too.")] = False,
    mode: Annotated[Mode, typer.Option(help="How the schedule is run.")] = Mode.auto,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the network's branches first.")] = False,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Make a set of pictures, in one process or in many; run again to go on where it stopped."""
    from tenuto.cli.evaluate import run_samples
    from tenuto.evaluate.samples import Order, read_captions
    from tenuto.schedules import load_schedule

    order = Order(
        model=model,
        samples=count,
        schedule=load_schedule(schedule) if schedule else None,
        captions=read_captions(captions) if captions else (),
        steps=steps,
        guidance=guidance,
        solver=solver.value if solver else None,
        seed=seed,
        batch=batch,
        dtype=dtype.value if dtype else None,
        vae=vae,
        mode=mode.value,
        compiled=compiled,
        device=device,
    )
    run_samples(order, output, png, as_json)


@evaluation.command(
    epilog="Example: tenuto eval pictures run --reference VIRTUAL_imagenet256_labeled.npz --device cuda"
)
def pictures(
    samples: Annotated[Path, typer.Argument(metavar="DIR_OR_NPZ", help="A set of pictures.")],
    reference: Annotated[
        Path | None,
        typer.Option(help="Pictures (directory, npz) or statistics (npz with mu and sigma; safetensors of ours)."),
    ] = None,
    features: Annotated[
        Features, typer.Option(help="inception: torch-fidelity's, as published; own: the shipped classifiers'.")
    ] = Features.inception,
    inception: Annotated[
        Path | None, typer.Option(help="Inception weights in a file, where there is no network.")
    ] = None,
    clip: Annotated[
        Path | None, typer.Option(help="A CLIP model's directory; also score pictures by captions.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Pictures looked at at a time.")] = 64,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the figures here, as JSON.")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Judge a set of pictures against a reference, and say under which conditions the figures hold."""
    from tenuto.cli.evaluate import run_pictures

    options = {"features": features.value, "inception": inception, "clip": clip, "batch": batch, "device": device}
    run_pictures(samples, reference, options, output, as_json)


@evaluation.command(
    epilog="Example: tenuto eval lm GSAI-ML/LLaDA-8B-Instruct --tasks gsm8k --schedule s.json --device cuda -o a.json"
    " · tenuto eval lm tiny-llada --tasks-file sums.jsonl --length 16 -o full.json"
)
def lm(
    model: Annotated[str, typer.Argument(help=MODEL)],
    output: Annotated[Path, typer.Option("-o", "--output", help="Write the results here, question by question.")],
    tasks: Annotated[str | None, typer.Option(help="Tasks of lm-eval by name, with commas between.")] = None,
    tasks_files: Annotated[
        list[Path] | None, typer.Option("--tasks-file", help="Tasks in a JSONL file, without network; repeat for more.")
    ] = None,
    schedule: Annotated[Path | None, typer.Option(help="A schedule file; without one, everything is computed.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many questions of each task.")] = None,
    fewshot: Annotated[int | None, typer.Option(min=0, help="Examples before a question, of named tasks.")] = None,
    length: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 256,
    steps: Annotated[int | None, typer.Option(help="Evaluations. Default: the schedule's, else one a token.")] = None,
    block_length: Annotated[
        int | None, typer.Option(help="Tokens finished before the next are begun. Default: the schedule's, else all.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap prompts by the model's chat template.")] = False,
    draws: Annotated[int, typer.Option(min=1, help="Of the estimate of a likelihood.")] = 128,
    seed: Annotated[int, typer.Option(min=0, max=2**53, help="Of those estimates.")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Questions answered at a time.")] = 16,
    dtype: Dtype = None,
    allow_code: Annotated[
        bool, typer.Option("--allow-code-execution", help="Let pass@1 run what the model writes, with your rights.")
    ] = False,
    mode: Annotated[Mode, typer.Option(help="How the schedule is run.")] = Mode.auto,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the network's branches first.")] = False,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Evaluate a language model: lm-eval's tasks by name, or tasks of your own from files."""
    from tenuto.cli.evaluate import run_lm

    writing = {"length": length, "steps": steps, "block_length": block_length, "chat": chat}
    running = {"mode": mode.value, "compiled": compiled}
    run_lm(
        model,
        output,
        names=[name.strip() for name in (tasks or "").split(",") if name.strip()],
        files=tasks_files or [],
        schedule_path=schedule,
        limit=limit,
        fewshot=fewshot,
        draws=draws,
        seed=seed,
        batch=batch,
        dtype=dtype.value if dtype else None,
        allow_code=allow_code,
        device=device,
        as_json=as_json,
        **writing,
        **running,
    )


@evaluation.command(epilog="Example: tenuto eval compare full.json held.json")
def compare(
    first: Annotated[Path, typer.Argument(help="Results of `tenuto eval lm`.")],
    second: Annotated[Path, typer.Argument(help="Results of another run on the same questions.")],
    as_json: AsJson = False,
) -> None:
    """Compare two runs question by question: the difference, its interval, and whether it may be chance."""
    from tenuto.cli.evaluate import run_compare

    run_compare(first, second, as_json)
