"""`tenuto bench`: how fast a model runs here, by every way of running it."""

from pathlib import Path

import torch
from rich.table import Table

from tenuto.cli.console import out, print_json, progress, say
from tenuto.cli.generate import check_device
from tenuto.errors import UsageError
from tenuto.files import check_writable, write_json
from tenuto.measure.speed import Row, ceilings, ladder, measure, subject_of
from tenuto.models import load
from tenuto.provenance import provenance


def run(
    name: str,
    batch: int,
    tokens: int | None,
    budget: float,
    steps: int,
    repeats: int,
    output: Path | None,
    device: str,
    as_json: bool,
) -> None:
    place = check_device(device)
    if output is not None:
        check_writable(output, reads=[name])
    model = load(name, device=place, dtype=torch.bfloat16 if place.type == "cuda" else None)
    if tokens is not None and model.architecture.asks_for != "prompt":
        raise UsageError(f"--tokens means nothing to a model that draws, which {name} is.")
    if tokens is not None and tokens > model.config.max_sequence_length:
        raise UsageError(f"{name} was made for {model.config.max_sequence_length} tokens at most, not {tokens}.")
    subject = subject_of(name, model.network, model.architecture, model.config, batch=batch, tokens=tokens)
    rungs = ladder(subject, budget, steps)
    rows: list[Row] = []
    with progress(f"Timing {name}", len(rungs)) as advance:
        for row in measure(subject, rungs, repeats):
            rows.append(row)
            advance(1)
    record = {
        "provenance": provenance(device, seed=0, ceilings=ceilings(place)),
        "rows": [row.to_json() for row in rows],
    }
    if output is not None:
        write_json(output, record)
    if as_json:
        print_json(record)
        return
    print_rows(rows)
    if output is not None:
        say(f"Wrote {output}")


def print_rows(rows: list[Row]) -> None:
    title = f"{rows[0].model}, {rows[0].setting}: milliseconds an evaluation"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("way of running", "schedule"):
        table.add_column(column, no_wrap=True)
    for column in ("work", "ms", "spread", "over eager", "kept"):
        table.add_column(column, justify="right")
    for row in rows:
        if row.schedule == "nothing":  # a yardstick, not a schedule
            continue
        table.add_row(
            row.mode,
            row.schedule,
            f"{row.flop_budget:.0%}",
            f"{row.ms_per_evaluation:.3f}",
            f"{row.spread:.0%}",
            f"{row.speedup_over_eager or 1:.2f}×",
            f"{row.cache_bytes / 2**20:.1f} MiB" if row.cache_bytes else "",
        )
    out.print(table)
    out.print("[dim]work: share of the units' floating-point operations. Quality is another matter: see the README.[/]")
