"""Measure the default schedule on networks that others trained; docs/benchmarks.md says how to get them.

    python -m benchmarks.transfer --only "electric load"        # half a minute on a CPU
    python -m benchmarks.transfer --device cuda                 # every network found
    python -m benchmarks.transfer --ours-only --only faces --samples 3 --seeds 2  # the rivals' rows stay

The results of each network are added to the file as soon as they are known, and replace older ones of the same network.
The samples of full runs and of rivals are kept in a folder, so a run that was stopped goes on where it was.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.kept import Kept
from benchmarks.networks_of_others.solvers import SOLVERS, UNCLIPPED
from benchmarks.places import ROOT, results_of
from benchmarks.transfer import writing
from benchmarks.transfer.measuring import EVALUATIONS, check_before, measure
from benchmarks.transfer.networks import NETWORKS, WRITERS
from benchmarks.transfer.report import RECORD, tables
from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import write_json, write_text
from tenuto.provenance import provenance
from tenuto_lab.result_files import read_result

RESULTS, PACKAGES, FACES = results_of("transfer"), ROOT / "data" / "third-party", ROOT / "data" / "64x64_cosin_300"
KEPT = ROOT / "data" / "transfer"


def main(
    out: Annotated[Path, typer.Option(help="The file to write; other networks' results in it stay.")] = RESULTS,
    packages: Annotated[
        Path, typer.Option(help="Folder with the packages, as pip install --target makes it.")
    ] = PACKAGES,
    faces: Annotated[Path, typer.Option(help="Folder with the faces' model.json.")] = FACES,
    only: Annotated[list[str] | None, typer.Option(help=f"Networks: {'; '.join([*NETWORKS, *WRITERS])}.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Of each seed.")] = 8,
    seeds: Annotated[int, typer.Option(min=1, help="Rounds, each from other noise.")] = 3,
    steps: Annotated[list[int] | None, typer.Option(min=2, help="Of full runs, instead of each network's own.")] = None,
    evaluations: Annotated[
        list[int] | None,
        typer.Option(
            min=2,
            help=f"Of the network; by default {', '.join(map(str, EVALUATIONS))}. Those of at most half "
            "of the steps are measured.",
        ),
    ] = None,
    solvers: Annotated[
        list[str] | None,
        typer.Option("--solver", help=f"Rivals beside DDIM; by default all: {'; '.join([*SOLVERS, *UNCLIPPED])}."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    kept: Annotated[Path, typer.Option(help="Folder that keeps the samples of full runs and rivals.")] = KEPT,
    ours_only: Annotated[
        bool, typer.Option("--ours-only", help="Measure Tenuto alone; the rivals' rows that the file holds stay.")
    ] = False,
    agreement: Annotated[
        bool, typer.Option(help="Draw a run of half the steps, too, to see whether the longest run has converged.")
    ] = True,
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Measure nothing; draw what the file holds.")] = False,
) -> None:
    """Measure the default schedule and the strong solvers on published networks."""
    if unknown := [name for name in only or () if name not in {*NETWORKS, *WRITERS}]:
        raise UsageError(f"There is no network {unknown[0]!r}; there are {'; '.join([*NETWORKS, *WRITERS])}.")
    if unknown := [name for name in solvers or () if name not in {*SOLVERS, *UNCLIPPED}]:
        raise UsageError(f"There is no solver {unknown[0]!r}; there are {'; '.join([*SOLVERS, *UNCLIPPED])}.")
    record = read(out)
    for name, entry in () if draw_only else NETWORKS.items():
        if only and name not in only:
            continue
        before = record["networks"].get(name) if ours_only else None
        counts = sorted(evaluations or EVALUATIONS, reverse=True)
        if ours_only:
            if before is None:
                raise UsageError(f"{out} holds no rivals' rows of {name}; leave out --ours-only.")
            check_before(name, before, steps or entry.steps, counts, samples * seeds)  # before a network is loaded
        case = entry.load(faces if name == "faces" else packages)
        case.network.to(device)
        made = {"provenance": provenance(device, seed=0), "samples": samples, "seeds": seeds}
        if before is not None:
            made = {**made, "provenance": before["provenance"], "provenance_of_tenuto": made["provenance"]}
        store = Kept(kept)
        asked = (case, steps or entry.steps, counts, samples, seeds, say)
        found = measure(*asked, kept=store, before=before, solvers=solvers, agreement=agreement)
        record = add(out, "networks", name, {**made, "chosen_by": entry.chosen_by, **found})
    for name, load in () if draw_only or ours_only else WRITERS.items():
        if only and name not in only:
            continue
        writer = load(packages)
        writer.network.to(device)
        made = {"provenance": provenance(device, seed=0), "samples": samples, "seeds": seeds}
        record = add(out, "writers", name, {**made, **writing.measure(writer, samples, seeds, say)})
    write_text(out.with_suffix(".md"), tables(record))


def read(out: Path) -> dict[str, Any]:
    return {"networks": {}, "writers": {}, **(read_result(out, "record of networks", RECORD) if out.is_file() else {})}


def add(out: Path, kind: str, name: str, found: dict[str, Any]) -> dict[str, Any]:
    """The file's content with one network's results, written. Another process may have added some in the meantime."""
    record = read(out)
    record[kind][name] = found
    write_json(out, record)
    return record


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    run(main)
