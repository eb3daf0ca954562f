"""How long each of the paper's experiments takes on one CPU core at the smallest size: to try the commands.

    python -m benchmarks.smallest_experiments          # about ten core minutes; again, to go on

So few samples judge nothing. The results are thrown away; only the core seconds are kept, which other work on the
same machine hardly changes.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Annotated, Any

import typer

from benchmarks.places import ROOT, results_of
from scripts.command_line import run
from tenuto.files import write_json
from tenuto.provenance import provenance
from tenuto_lab.paper import EXPERIMENTS
from tenuto_lab.paper.smallest import LONG, options_of, read_smallest


def core_seconds(name: str, folder: str) -> float:
    """The time that one experiment keeps a core busy, with starting Python and loading the model."""
    words = [sys.executable, "-m", "tenuto_lab", "experiment", name, *options_of(name), "-o", folder]
    before = getrusage(RUSAGE_CHILDREN)
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(words, cwd=ROOT, env=one_thread, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(
    out: Annotated[Path, typer.Option(help="The file to write, and to go on from.")] = results_of(
        "smallest_experiments"
    ),
    only: Annotated[
        list[str] | None, typer.Option(help="An experiment; repeat. Default: all that take minutes.")
    ] = None,
) -> None:
    """Time every experiment at the smallest size."""
    known: dict[str, Any] = read_smallest(out) if out.exists() else {"experiments": {}}
    for name in only or [name for name in EXPERIMENTS if name not in LONG]:
        if name in known["experiments"]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            seconds = core_seconds(name, folder)
        known["experiments"][name] = provenance("cpu", core_seconds=round(seconds, 1))
        write_json(out, known)
        print(f"{name}: {seconds:.0f} core seconds", flush=True)


if __name__ == "__main__":
    run(main)
