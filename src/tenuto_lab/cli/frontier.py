"""`tenuto lab frontier`: quality against work and time, for every policy and its rivals, on one model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tenuto.cli.app import AsJson, Device, ModelName
from tenuto_lab.cli.app import Precision, app, telling

STEPS, TEXT_STEPS = 50, 64


@app.command(epilog="Example: tenuto lab frontier tiny-dit --samples 8 --png frontier.png")
def frontier(
    model: ModelName,
    steps: Annotated[
        list[int] | None,
        typer.Option(min=1, max=1000, help="Steps of the full run; repeat for more. Default: 50; 64 for text."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, max=100_000, help="Samples for each seed.")] = 8,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds, each from other noise.")] = 3,
    budgets: Annotated[
        list[float] | None, typer.Option("--budget", help="A share of the work to try; repeat. Default: five of them.")
    ] = None,
    rivals: Annotated[bool, typer.Option(help="Also measure fewer steps and other caches.")] = True,
    named: Annotated[
        list[str] | None,
        typer.Option("--rival", help="Also a solver or cache by name, at its best setting; repeat, or: all."),
    ] = None,
    converged: Annotated[
        int, typer.Option(min=0, max=100_000, help="Samples for each seed in 250, 500 and 1,000 steps as well.")
    ] = 0,
    block_length: Annotated[int, typer.Option(min=1, help="Text: finish so many tokens before the next.")] = 32,
    vae: Annotated[Path | None, typer.Option(help="A VAE directory, for latents. Default: beside the model.")] = None,
    captions: Annotated[
        Path | None, typer.Option(help="A file of captions, one on each line, for a whole pipeline.")
    ] = None,
    problems: Annotated[
        Path | None,
        typer.Option(help="Text: a JSONL file with task, prompt and answer. Default: problems.json beside the model."),
    ] = None,
    answer_length: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Text: tokens of an answer. Default: what problems.json says, or 16."),
    ] = None,
    length: Annotated[int, typer.Option(min=1, max=4096, help="Text: tokens of a continuation.")] = 128,
    inception: Annotated[
        Path | None, typer.Option(help="Inception weights: torch-fidelity's file, or TorchScript.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Real pictures or their statistics: judge by Inception features.")
    ] = None,
    dtype: Annotated[Precision, typer.Option(help="Precision to run in.")] = "float32",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the figures here, as JSON.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw quality against work and time.")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure quality against work and time, for every policy and its rivals, on this model. Takes minutes."""
    import torch

    from tenuto.cli.app import check_device
    from tenuto.cli.console import out, print_json, say
    from tenuto.errors import UsageError
    from tenuto.extras import needs
    from tenuto.files import check_writable, write_json
    from tenuto.models import load
    from tenuto.provenance import provenance
    from tenuto.scheduling.making import check_budget
    from tenuto_lab.frontier import case_of, measure
    from tenuto_lab.frontier.frontier_report import frontier_picture, frontier_tables
    from tenuto_lab.full_size.inception_judge import inception_judge
    from tenuto_lab.full_size.samples import read_captions
    from tenuto_lab.paper.writing_bench import read_problems
    from tenuto_lab.rivals import NAMES

    if png is not None:
        needs("--png", "lab", "matplotlib")
    if reference is not None and (inception is None or inception.suffix != ".pt"):
        needs("--reference", "eval", "torch_fidelity")
    if inception is not None and reference is None:
        raise UsageError("Inception judges against real pictures: name them, or their statistics, with --reference.")
    place = check_device(device)
    for path in (output, png):
        if path is not None:
            check_writable(path, reads=[model])
    for budget in budgets or []:
        check_budget(budget)
    loaded = load(model, device=place, dtype=getattr(torch, dtype))
    text = loaded.architecture.asks_for == "prompt"
    if text and reference is not None:
        raise UsageError(f"{model} writes text; --reference is for pictures.")
    if problems is not None and not text:
        raise UsageError(f"{model} draws pictures; --problems is for text.")
    posed = None if problems is None else read_problems(problems, loaded)
    judge = None if reference is None else inception_judge(inception, reference, place)
    record: dict[str, Any] = {"cases": {}, "rows": [], "comparisons": []}
    for count in steps or [TEXT_STEPS if text else STEPS]:
        case = case_of(
            loaded,
            count,
            samples=samples,
            seeds=seeds,
            budgets=budgets,
            converged=converged,
            rivals=rivals,
            block_length=block_length,
            named=NAMES if named == ["all"] else named or (),
            vae=vae,
            captions=read_captions(captions) if captions else (),
            posed=posed,
            answer_length=answer_length,
            length=length,
            judge=judge,
        )
        with telling(f"Measuring {model} at {count} steps") as tell:
            measured = measure(case, tell)
        key = f"{model}:{count}"
        record["rows"] += [{"case": key, **row.to_json()} for row in measured.rows]
        record["comparisons"] += [{"case": key, **one.to_json()} for one in measured.comparisons]
        record["cases"][key] = provenance(device, seed=0, converged=measured.converged, unable=measured.unable)
        if output is not None:
            write_json(output, record)  # after each number of steps, so that Ctrl-C keeps what is finished
    if png is not None:
        frontier_picture(record, loaded.name, png)
    if as_json:
        print_json(record)
    else:
        out.print(frontier_tables(record), markup=False, soft_wrap=True)
    for path in (output, png):
        if path is not None:
            say(f"Wrote {path}")
