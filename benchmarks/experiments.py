"""The paper's experiments by many processes on one GPU, and their trials put together.

    python -m benchmarks.experiments measure --minutes 9       # again, until it says that nothing is left
    python -m benchmarks.experiments times --minutes 2         # alone on the GPU
    python -m benchmarks.experiments assemble                  # on any machine
    python -m benchmarks.experiments keep trials.jsonl         # all trials in one file, for --trials another time

The networks are small, so one process leaves a GPU idle between its launches. Each part is one process and one file
of trials; parts never write to the same file. Nothing is timed while they run beside each other: `times` takes the
times afterwards. `assemble` measures nothing. It writes result files, tables and figures from all trials; what is not
complete, it names. Trials go together only if the same code measured them on the same hardware: to go on with kept
ones, check out the commit that their first line names. `results/trials` holds some.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from benchmarks.places import ROOT
from scripts.command_line import run_app
from tenuto.errors import TenutoError, UsageError
from tenuto.files import write_text
from tenuto_lab.cli.experiment import STOPPED
from tenuto_lab.paper.notes import DONE, FILE, read_trials

OUT = ROOT / "results" / "experiments"
MODELS = ("tiny-dit", "tiny-uvit", "tiny-sdxl", "small-llada")
MAIN = ("operating-points", "rankings", "horizons", "pareto")
BY_BLOCKS = {False: ("comparisons", "input-aware"), True: ("language", "input-aware")}  # of a model that writes?
TIMED = ("execution", "operating-points", "comparisons", "input-aware", "language", "pareto", "oracle", "freezing")
ONE_PASS = 3  # seconds between two looks at the processes

app = typer.Typer(no_args_is_help=True, add_completion=False)
Out = Annotated[Path, typer.Option(help="Where results are written; trials lie in .parts below it.")]
Device = Annotated[str, typer.Option(help="Where to run.")]
Trials = Annotated[
    list[Path] | None, typer.Option("--trials", help="Also use these trials, which were kept: a file; repeat.")
]


class Part(NamedTuple):
    """What one process does."""

    name: str
    experiments: tuple[str, ...]
    options: tuple[str, ...]


def parts() -> list[Part]:
    """All parts, the most important first."""
    found = []
    for model in MODELS:
        writes = model == "small-llada"
        for granularity in ("block", "branch"):
            more = BY_BLOCKS[writes] if granularity == "block" else ()
            names = (*MAIN[:2], *more, *MAIN[2:])
            found.append(Part(f"{model}-{granularity}", names, ("--model", model, "--granularity", granularity)))
    for model in MODELS:
        names = ("freeze-error", "failures", "audit")
        names += {"small-llada": ("freezing", "oracle", "bounds"), "tiny-sdxl": ()}.get(model, ("bounds", "oracle"))
        found.append(Part(f"{model}-units", names, ("--model", model)))
    for model in MODELS:
        options = ("--model", model, "--granularity", "block", "--dtype", "bfloat16")
        found.append(Part(f"{model}-bfloat16", MAIN[:2], options))
    return found


@app.command()
def measure(
    only: Annotated[list[str] | None, typer.Option(help="Parts whose name contains this; repeat.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 12,
    minutes: Annotated[float, typer.Option(min=0.01, help="Stop after so long, between two trials.")] = 9,
    out: Out = OUT,
    device: Device = "cuda",
    extra: Annotated[
        list[str] | None, typer.Option(help="Options of every process: --extra=--steps=8; repeat.")
    ] = None,
    trials: Trials = None,
) -> None:
    """Measure what is not measured yet, without times."""
    waiting = [part for part in parts() if not only or any(word in part.name for word in only)]
    more = [*(extra or []), *_named(trials or [])]
    begun, left = time.monotonic(), []
    running: dict[str, subprocess.Popen[bytes]] = {}
    while waiting or running:
        spent = (time.monotonic() - begun) / 60
        while waiting and len(running) < jobs and spent < minutes:
            part = waiting.pop(0)
            running[part.name] = _started(part, out, device, minutes - spent, more)
        if not running:
            break
        time.sleep(ONE_PASS)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                left += [f"{name} ({process.returncode})"] if process.returncode else []
                print(f"{time.monotonic() - begun:6.0f} s  {name} ended with {process.returncode}", flush=True)
    left += [part.name for part in waiting]
    print(f"left: {', '.join(left) or 'nothing'}", flush=True)
    raise typer.Exit(STOPPED if left else 0)


def _started(part: Part, out: Path, device: str, minutes: float, extra: list[str]) -> subprocess.Popen[bytes]:
    folder = out / ".parts" / part.name
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tenuto_lab", "experiment", *part.experiments, *part.options, *extra]
    command += ["--device", device, "--beside", "--resume", "--minutes", f"{minutes:.2f}", "-o", _shown(folder)]
    with (folder / "log").open("ab") as log:
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **threads})


@app.command()
def times(
    minutes: Annotated[float, typer.Option(min=0.01, help="Stop after so long, between two trials.")] = 2,
    out: Out = OUT,
    device: Device = "cuda",
    only: Annotated[list[str] | None, typer.Option(help="Experiments, instead of all; repeat.")] = None,
    extra: Annotated[list[str] | None, typer.Option(help="Options of the experiments; repeat.")] = None,
    trials: Trials = None,
) -> None:
    """Time what was measured beside other work. Run this alone on the GPU."""
    command = [sys.executable, "-m", "tenuto_lab", "experiment", *(only or TIMED), "--times", "--resume"]
    command += [
        "--device",
        device,
        "--minutes",
        f"{minutes:.2f}",
        "-o",
        _shown(out / ".parts" / "times"),
        *(extra or []),
    ]
    command += _named(_known(out, trials))
    raise typer.Exit(subprocess.run(command, check=False).returncode)


@app.command()
def assemble(
    out: Out = OUT,
    dtype: Annotated[str, typer.Option(help="float32, or bfloat16.")] = "float32",
    only: Annotated[list[str] | None, typer.Option(help="Experiments, instead of all; repeat.")] = None,
    extra: Annotated[list[str] | None, typer.Option(help="Options of the experiments; repeat.")] = None,
    trials: Trials = None,
) -> None:
    """Write result files, tables and figures from all trials."""
    command = [sys.executable, "-m", "tenuto_lab", "experiment", *(only or ["all"]), "--minutes", "0", *(extra or [])]
    command += _named(_known(out, trials))
    if dtype != "float32":
        command += ["--dtype", dtype, "--granularity", "block"]
    place = out if dtype == "float32" else out.with_name(f"{out.name}-{dtype}")
    raise typer.Exit(subprocess.run([*command, "-o", _shown(place)], check=False).returncode)


@app.command()
def keep(
    file: Annotated[Path, typer.Argument(help="The file to write.")], out: Out = OUT, trials: Trials = None
) -> None:
    """Put all trials into one file."""
    read = [read_trials(path) for place in _known(out, trials) for path in sorted(place.rglob(FILE)) or [place]]
    jobs = [job for job, _ in read]
    if not jobs:
        raise UsageError(f"There are no trials in {_shown(out / '.parts')}; `measure` makes them.")
    if any(job != jobs[0] for job in jobs):
        raise TenutoError("These trials were made by different code, or on different hardware: keep them apart.")
    kept = {name: value for _, entries in read for name, value in entries.items() if not name.startswith(DONE)}
    lines = [{"job": jobs[0]}, *({name: kept[name]} for name in sorted(kept))]
    write_text(file, "".join(json.dumps(line) + "\n" for line in lines))
    print(f"{file}: {len(kept)} trials and runs of {len(read)} files")


def _known(out: Path, trials: list[Path] | None) -> list[Path]:
    """Where trials are."""
    own = out / ".parts"
    return [*(trials or []), *([own] if own.is_dir() else [])]


def _named(trials: list[Path]) -> list[str]:
    return [word for place in trials for word in ("--trials", _shown(place))]


def _shown(path: Path) -> str:
    """As one would type it here; results name the command that made them."""
    return os.path.relpath(path)


if __name__ == "__main__":
    run_app(app)
