"""What the commands of `tenuto eval` do."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape

from tenuto.cli.console import out, print_json, progress, say
from tenuto.cli.generate import check_device
from tenuto.errors import TenutoError, UsageError
from tenuto.evaluate.jobs import SETTINGS, Worker
from tenuto.evaluate.samples import SET, Order, make_samples
from tenuto.evaluate.tasks import read_tasks, run_files, run_named
from tenuto.evaluate.writing import Writer
from tenuto.files import check_writable, write_json
from tenuto.models import Model, load
from tenuto.schedules import Schedule, load_schedule


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
        check_writable(output, reads=[samples, *([reference] if reference else [])])
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


def run_lm(
    name: str,
    output: Path,
    *,
    names: list[str],
    files: list[Path],
    schedule_path: Path | None,
    limit: int | None,
    fewshot: int | None,
    draws: int,
    seed: int,
    batch: int,
    dtype: str | None,
    allow_code: bool,
    device: str,
    as_json: bool,
    **options: Any,
) -> None:
    if bool(names) == bool(files):
        raise UsageError("Say what to ask: --tasks (of lm-eval, by name) or --tasks-file (your own), one of them.")
    worker = Worker.from_environment()
    place = check_device(worker.device(device))
    check_writable(output, reads=[name, *files, *([schedule_path] if schedule_path else [])])
    schedule = load_schedule(schedule_path) if schedule_path else None
    model = load(name, device=place, dtype=getattr(torch, dtype) if dtype else None)
    if names:
        lm = harness_model(model, schedule, draws=draws, seed=seed, batch_size=batch, **options)
        results = run_named(lm, names, output, limit=limit, fewshot=fewshot, allow_code=allow_code)
    else:
        if fewshot is not None:
            raise UsageError("--fewshot is for lm-eval's tasks; in a file the prompts are whole.")
        writer = Writer(model, schedule, batch=batch, **options)
        questions = sum(len(read_tasks(path, limit)) for path in files)
        with progress("Answering", questions) as advance:
            how: dict[str, Any] = {"limit": limit, "allow_code": allow_code, "worker": worker, "told": advance}
            results = run_files(writer, files, output, **how)
    if results is None:
        say(f"Process {worker.rank} has no more to do; the last one writes {output}. Should one fail, run this again.")
    elif as_json:
        print_json(results)
    else:
        for task, figures in results["tasks"].items():
            value, low, high = figures["score"]
            tokens = "" if figures["answer_tokens"] is None else f", {figures['answer_tokens']:.1f} tokens an answer"
            told = (
                f"{task}: {value:.3f} (95% interval {low:.3f} to {high:.3f}), {figures['questions']} questions{tokens}"
            )
            out.print(told, markup=False, soft_wrap=True)


def harness_model(model: Model, schedule: Schedule | None, **options: Any) -> Any:
    try:
        from tenuto.evaluate.harness import TenutoLM
    except ImportError as error:
        raise TenutoError(
            f"Tasks by name need lm-eval ({error}): pip install 'tenuto[eval]'. Tasks from a file do not: --tasks-file"
        ) from error
    return TenutoLM(model, schedule, **options)


def run_compare(first: Path, second: Path, as_json: bool) -> None:
    from tenuto.evaluate.compare import compare

    differences = compare(first, second)
    if as_json:
        print_json([asdict(one) for one in differences])
        return
    for one in differences:
        value, low, high = one.difference
        out.print(
            f"{one.task}: {one.first:.3f} → {one.second:.3f}, difference {value:+.3f} "
            f"(95% interval {low:+.3f} to {high:+.3f}), p = {one.p:.3g} ({one.test}); {one.questions} questions, "
            f"{one.only_first} better in the first only, {one.only_second} in the second",
            markup=False,
            soft_wrap=True,
        )
