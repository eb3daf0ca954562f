"""`tenuto frontier`: quality against work and time, for every policy and its rivals, on one model."""

from pathlib import Path
from typing import Any

import torch

from tenuto.cli.console import err, out, print_json, say
from tenuto.cli.generate import check_device
from tenuto.files import check_writable, write_json
from tenuto.measure.frontier import case_of, measure
from tenuto.models import load
from tenuto.policies.common import check_budget
from tenuto.provenance import provenance
from tenuto.report.frontier import frontier_picture, frontier_tables

STEPS, TEXT_STEPS = 50, 64


def run(
    name: str,
    steps: list[int] | None,
    samples: int,
    seeds: int,
    budgets: list[float] | None,
    rivals: bool,
    converged: int,
    block_length: int,
    output: Path | None,
    png: Path | None,
    device: str,
    as_json: bool,
) -> None:
    place = check_device(device)
    for path in (output, png):
        if path is not None:
            check_writable(path, reads=[name])
    for budget in budgets or []:
        check_budget(budget)
    model = load(name, device=place, dtype=torch.float32)
    text = model.architecture.asks_for == "prompt"
    record: dict[str, Any] = {"cases": {}, "rows": [], "comparisons": []}
    for count in steps or [TEXT_STEPS if text else STEPS]:
        case = case_of(
            model,
            count,
            samples=samples,
            seeds=seeds,
            budgets=budgets,
            converged=converged,
            rivals=rivals,
            block_length=block_length,
        )
        with err.status(f"Measuring {name} at {count} steps") as status:
            # What was measured stands above the line that says what goes on.
            frontier = measure(case, lambda told: status.console.print(told, markup=False, soft_wrap=True))
        key = f"{name}:{count}"
        record["rows"] += [{"case": key, **row.to_json()} for row in frontier.rows]
        record["comparisons"] += [{"case": key, **one.to_json()} for one in frontier.comparisons]
        record["cases"][key] = provenance(device, seed=0, converged=frontier.converged)
        if output is not None:
            write_json(output, record)  # after each number of steps: Ctrl-C keeps what is finished
    if png is not None:
        frontier_picture(record, model.name, png)
    if as_json:
        print_json(record)
    else:
        out.print(frontier_tables(record), markup=False, soft_wrap=True)
    for path in (output, png):
        if path is not None:
            say(f"Wrote {path}")
