"""What the commands of `tenuto eval` do."""

from pathlib import Path
from typing import Any

from rich.markup import escape

from tenuto.cli.console import out, print_json, progress, say
from tenuto.cli.generate import check_device
from tenuto.evaluate.jobs import SETTINGS, Worker
from tenuto.evaluate.samples import SET, Order, make_samples
from tenuto.files import check_writable, write_json


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


def run_pictures(
    samples: Path, reference: Path | None, options: dict[str, Any], output: Path | None, as_json: bool
) -> None:
    from tenuto.evaluate.pictures import evaluate_pictures

    check_device(options["device"])
    if output is not None:
        check_writable(output)
    report = evaluate_pictures(samples, reference, **options)
    if output is not None:
        write_json(output, report)
    if as_json:
        print_json(report)
        return
    for line in _told(report):
        out.print(line, soft_wrap=True, markup=False)


def _told(report: dict[str, Any]) -> list[str]:
    figures, reference, drawn = report["figures"], report["reference"], report["samples"]
    value, low, high = figures["fid"]
    lines = [f"Fréchet distance   {value:.3f}  (95% interval {low:.3f} to {high:.3f})"]
    if figures["sfid"] is not None:
        lines.append(f"spatial, sFID      {figures['sfid']:.3f}")
    if figures["inception_score"] is not None:
        lines.append("inception score    {:.3f} ± {:.3f}".format(*figures["inception_score"]))
    if figures["precision"] is not None:
        lines.append(f"precision, recall  {figures['precision']:.3f}, {figures['recall']:.3f}")
    if "clip_score" in figures:
        lines.append("CLIP score         {:.2f}  (95% interval {:.2f} to {:.2f})".format(*figures["clip_score"]))
    count = "" if reference["count"] is None else f", {reference['count']} pictures"
    lines += [f"in {report['features']}, against {reference['name']}{count}"]
    known = drawn["manifest"]
    made = "" if known is None else f": {conditions(known)}"
    return [
        *lines,
        f"{drawn['count']} pictures of {drawn['name']}{made or ', of which no manifest tells how they were made'}",
    ]


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
