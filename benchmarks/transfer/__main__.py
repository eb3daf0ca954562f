"""Measure the default schedule on networks that others trained; docs/benchmarks.md says how to get them.

    python -m benchmarks.transfer --only "electric load"        # half a minute on a CPU
    python -m benchmarks.transfer --device cuda                 # every network found

The results of each network are added to the file as soon as they are known, and replace older ones of the same network.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.places import ROOT, results_of
from benchmarks.transfer import writing
from benchmarks.transfer.measuring import BUDGETS, measure
from benchmarks.transfer.networks import NETWORKS, WRITERS
from benchmarks.transfer.report import RECORD, tables
from tenuto.errors import UsageError
from tenuto.files import write_json, write_text
from tenuto.provenance import provenance
from tenuto_lab.result_files import read_result

RESULTS, PACKAGES, FACES = results_of("transfer"), ROOT / "data" / "third-party", ROOT / "data" / "64x64_cosin_300"


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
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Measure nothing; draw what the file holds.")] = False,
) -> None:
    """Measure the default schedule and the strong solvers on published networks."""
    if unknown := [name for name in only or () if name not in {*NETWORKS, *WRITERS}]:
        raise UsageError(f"There is no network {unknown[0]!r}; there are {'; '.join([*NETWORKS, *WRITERS])}.")
    record: dict[str, Any] = {
        "networks": {},
        "writers": {},
        **(read_result(out, "record of networks", RECORD) if out.is_file() else {}),
    }
    for name, entry in () if draw_only else NETWORKS.items():
        if only and name not in only:
            continue
        case = entry.load(faces if name == "faces" else packages)
        case.network.to(device)
        made = {"provenance": provenance(device, seed=0), "samples": samples, "seeds": seeds}
        found = measure(case, steps or entry.steps, BUDGETS, samples, seeds, say)
        record["networks"][name] = {**made, "chosen_by": entry.chosen_by, **found}
        write_json(out, record)
    for name, load in () if draw_only else WRITERS.items():
        if only and name not in only:
            continue
        writer = load(packages)
        writer.network.to(device)
        made = {"provenance": provenance(device, seed=0), "samples": samples, "seeds": seeds}
        record["writers"][name] = {**made, **writing.measure(writer, samples, seeds, say)}
        write_json(out, record)
    write_text(out.with_suffix(".md"), tables(record))


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    typer.run(main)
