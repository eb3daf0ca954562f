"""Quality against work and time on all four reference models, for every policy and its rivals.

    python -m benchmarks.frontier                      # all of it; a GPU makes it minutes instead of hours
    python -m benchmarks.frontier --only tiny-dit:50 --samples 16

Results are written after each point, so that an interrupted run keeps what it has; cases that the file holds complete
are left out unless --again is given. Tables and pictures are drawn of whatever the file holds.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import tenuto
from benchmarks.places import ROOT, results_of
from scripts.command_line import run
from tenuto.files import write_json, write_text
from tenuto.provenance import provenance
from tenuto_lab.frontier import Frontier, case_of, measure
from tenuto_lab.frontier.frontier_report import frontier_picture, frontier_tables
from tenuto_lab.frontier.known import read_frontier

RESULTS, PICTURES = results_of("frontier"), ROOT / "docs" / "images"
SHORT, LONG = (0.5, 0.34, 0.25), (0.34, 0.2, 0.13)  # budgets that make sense for few steps, and for many
# case -> steps, samples of each seed (drawn at once), and what else `case_of` is told
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "tiny-dit:50": (50, 300, {"converged": 50}),
    "tiny-dit:100": (100, 300, {"budgets": LONG}),
    "tiny-dit:20": (20, 300, {"budgets": SHORT}),
    "tiny-uvit:50": (50, 300, {"converged": 25}),
    "tiny-uvit:100": (100, 300, {"budgets": LONG}),
    "tiny-uvit:20": (20, 300, {"budgets": SHORT}),
    "tiny-sdxl:50": (50, 300, {"converged": 25}),
    "tiny-sdxl:100": (100, 300, {"budgets": LONG}),
    "tiny-sdxl:20": (20, 300, {"budgets": SHORT}),
    "small-llada:16": (16, 21, {"length": 32, "block_length": 16}),
    "small-llada:16 in one block": (16, 21, {"length": 32, "block_length": 32, "budgets": (0.63, 0.5, 0.3)}),
}


def main(
    out: Annotated[Path, typer.Option(help="The file to write, and to go on from.")] = RESULTS,
    only: Annotated[list[str] | None, typer.Option(help="Cases or models: tiny-dit, tiny-uvit:50, …")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Of each seed, instead of the case's own.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Rounds, each from other noise.")] = 3,
    converged: Annotated[bool, typer.Option(help="Draw some in 250, 500 and 1,000 steps, too.")] = True,
    rankings: Annotated[bool, typer.Option(help="Compare rankings and placements, too.")] = True,
    budgets: Annotated[
        list[float] | None, typer.Option("--budget", help="Shares of the work, instead of the case's own; repeat.")
    ] = None,
    ours_only: Annotated[
        bool,
        typer.Option(
            "--ours-only",
            help="Pictures: measure the full run and the default again and keep the other rows. Comparisons with the "
            "default are dropped: they need both, sample by sample.",
        ),
    ] = False,
    again: Annotated[bool, typer.Option(help="Measure what is in the file already, too.")] = False,
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Measure nothing; draw what the file holds.")] = False,
    device: Annotated[str, typer.Option(help="Where to run.")] = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Measure the frontier of the reference models."""
    known: dict[str, Any] = {"comparisons": [], **(read_frontier(out) if out.exists() else {"cases": {}, "rows": []})}
    # Products of float32 in tensor cores' own format: three times as fast, and alike to 60 dB.
    torch.set_float32_matmul_precision("high" if device.startswith("cuda") else "highest")
    for name, (steps, count, options) in CASES.items():
        model_name = name.split(":")[0]
        if draw_only or (only and name not in only and model_name not in only):
            continue
        if known["cases"].get(name, {}).get("complete") and not again and not ours_only:
            print(f"{name} is in {out} already")
            continue
        model = tenuto.load(model_name, device=torch.device(device), dtype=torch.float32)
        if "converged" in options and not converged:
            options = {**options, "converged": 0}
        options = {**options, "rankings": rankings, **({"budgets": tuple(budgets)} if budgets else {})}
        rest: dict[str, list[Any]] = {"rows": [], "comparisons": []}
        before = known["cases"].get(name, {})
        if ours_only:
            options["ours_only"] = True
            mine = {kind: [one for one in known[kind] if one["case"] == name] for kind in rest}
            rest["rows"] = [row for row in mine["rows"] if row["kind"] not in ("full", "ours")]
            rest["comparisons"] = [one for one in mine["comparisons"] if "tenuto at" not in one["a"]]
        case = case_of(model, steps, samples=samples or count, seeds=seeds, batch=samples or count, **options)

        def save(
            frontier: Frontier,
            complete: bool = False,
            name: str = name,
            rest: dict[str, list[Any]] = rest,
            before: dict[str, Any] = before,
        ) -> None:
            for kind, found in (("rows", frontier.rows), ("comparisons", frontier.comparisons)):
                known[kind] = [one for one in known[kind] if one["case"] != name]
                known[kind] += [{"case": name, **one.to_json()} for one in found] + rest[kind]
            precision = torch.get_float32_matmul_precision()
            made = provenance(device, seed=0, precision=precision, converged=frontier.converged, complete=complete)
            known["cases"][name] = {**before, "ours": made} if ours_only and before else made
            write_json(out, known)

        save(measure(case, lambda text: print(text, flush=True), save), complete=True)
    write_text(out.with_suffix(".md"), frontier_tables(known))
    for model_name in dict.fromkeys(name.split(":")[0] for name in known["cases"]):
        folder = PICTURES if out == RESULTS else out.parent
        frontier_picture(known, model_name, folder / f"frontier-{model_name}.png")


if __name__ == "__main__":
    run(main)
