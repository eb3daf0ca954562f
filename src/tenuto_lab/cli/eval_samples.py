"""`tenuto lab eval samples`: a set of pictures, made by one process or by many."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tenuto.cli.app import AsJson, Device, ModelName, Seed
from tenuto.cli.generate import Mode, Solver
from tenuto_lab.cli.app import Dtype, evaluation


@evaluation.command(
    epilog="Example: torchrun --nproc-per-node 8 -m tenuto_lab eval samples MODEL --samples 50000 --schedule s.json"
    " --device cuda -o run"
)
def samples(
    model: ModelName,
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory for the set. All processes share it.")],
    count: Annotated[
        int,
        typer.Option("--samples", min=1, max=10_000_000, help="How many samples. Each class comes equally often."),
    ],
    schedule: Annotated[
        Path | None, typer.Option(help="A schedule file. Without one, every step computes everything.")
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="A file of captions, one on each line. After the last, the first comes again.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, max=1000, help="Steps. Default: the schedule's, else 50.")] = None,
    guidance: Annotated[float | None, typer.Option(help="Classifier-free guidance. Default: the family's.")] = None,
    guided_channels: Annotated[
        int | None, typer.Option(min=1, max=64, help="Guide only the first channels, 3 of 4 for example. Default: all.")
    ] = None,
    solver: Annotated[Solver | None, typer.Option(help="The solver. Default: ddim; of a pipeline, its own.")] = None,
    seed: Seed = 0,
    batch: Annotated[
        int, typer.Option(min=1, max=65_536, help="Samples made at a time. Another batch makes another set.")
    ] = 32,
    dtype: Dtype = None,
    vae: Annotated[Path | None, typer.Option(help="A diffusers VAE directory, for latent models.")] = None,
    png: Annotated[bool, typer.Option("--png", help="Also write each picture as a file.")] = False,
    mode: Annotated[Mode, typer.Option(help="How the schedule is run.")] = "auto",
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the network's branches first.")] = False,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Make a set of pictures, in one process or in many. Run it again to go on where it stopped."""
    from tenuto.cli.app import check_device
    from tenuto.cli.console import print_json, progress, say, tell
    from tenuto.scheduling.schedule import load_schedule
    from tenuto_lab.full_size.jobs import Worker
    from tenuto_lab.full_size.samples import SET, Order, make_samples, read_captions

    order = Order(
        model=model,
        samples=count,
        schedule=load_schedule(schedule) if schedule else None,
        captions=read_captions(captions) if captions else (),
        steps=steps,
        guidance=guidance,
        solver=solver,
        seed=seed,
        batch=batch,
        dtype=dtype,
        vae=vae,
        guided_channels=guided_channels,
        mode=mode,
        compiled=compiled,
        device=device,
    )
    worker = Worker.from_environment()
    check_device(worker.device(device))
    if worker.rank:  # one bar is enough
        manifest = make_samples(order, output, worker, png)
    else:
        with progress("Sampling", count) as advance:
            manifest = make_samples(order, output, worker, png, advance)
    if manifest is None:
        say(
            f"Process {worker.rank} has no more to do. The last process collects the set. If one fails, run this again."
        )
    elif as_json:
        print_json(manifest)
    else:
        tell(f"{output / SET}: {conditions(manifest)}")


def conditions(manifest: dict[str, Any]) -> str:
    """How samples were made, for the line beside every number that is said of them."""
    from tenuto.cli.console import counted
    from tenuto_lab.full_size.jobs import SETTINGS

    made = manifest[SETTINGS]
    schedule, vae = made["schedule"], made["vae"]
    seeds = manifest["provenance"]["seeds"]
    return ", ".join(
        [
            f"{counted(made['samples'], 'sample')} of {made['model']}",
            f"{counted(made['steps'], 'step')} of {made['solver']}",
            "everything computed" if schedule is None else f"{schedule['work']:.0%} of the unit-steps computed",
            f"schedule {schedule['fingerprint'][:19]}…" if schedule else "no schedule",
            "guidance of the pipeline" if made["guidance"] is None else f"guidance {made['guidance']:g}",
            "no VAE" if vae is None else f"VAE {vae['name']} in {vae['dtype']}",
            made["dtype"],
            f"seeds {seeds[0]} to {seeds[1]}",
        ]
    )
