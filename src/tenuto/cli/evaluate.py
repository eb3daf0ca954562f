"""What the commands of `tenuto eval` do."""

from pathlib import Path
from typing import Any

from rich.markup import escape

from tenuto.cli.console import out, print_json, progress, say
from tenuto.cli.generate import check_device
from tenuto.evaluate.jobs import SETTINGS, Worker
from tenuto.evaluate.samples import SET, Order, make_samples


def run_samples(order: Order, output: Path, png: bool, as_json: bool) -> None:
    worker = Worker.from_environment()
    check_device(worker.device(order.device))
    if worker.rank:  # one bar is enough
        manifest = make_samples(order, output, worker, png)
    else:
        with progress("Sampling", order.samples) as advance:
            manifest = make_samples(order, output, worker, png, advance)
    if manifest is None:
        say(f"Process {worker.rank} has no more to do; the last one collects the set. Should one fail, run this again.")
    elif as_json:
        print_json(manifest)
    else:
        out.print(escape(f"{output / SET}: {conditions(manifest)}"), soft_wrap=True)


def conditions(manifest: dict[str, Any]) -> str:
    """Under which conditions samples were made, beside every number that is said of them."""
    made = manifest[SETTINGS]
    schedule, vae = made["schedule"], made["vae"]
    seeds = manifest["provenance"]["seeds"]
    return ", ".join(
        [
            f"{made['samples']} samples of {made['model']}",
            f"{made['steps']} steps of {made['solver']}",
            "everything computed" if schedule is None else f"{schedule['work']:.0%} of the unit-steps computed",
            f"schedule {schedule['fingerprint'][:19]}…" if schedule else "no schedule",
            "guidance of the pipeline" if made["guidance"] is None else f"guidance {made['guidance']:g}",
            "no VAE" if vae is None else f"VAE {vae['name']} in {vae['dtype']}",
            made["dtype"],
            f"seeds {seeds[0]} to {seeds[1]}",
        ]
    )
