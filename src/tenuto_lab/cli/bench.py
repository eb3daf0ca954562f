"""`tenuto lab bench`: how fast a model runs here, by every way of running it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenuto.cli.app import MOST, AsJson, Device, ModelName
from tenuto_lab.cli.app import app

if TYPE_CHECKING:
    from tenuto_lab.speed.ladder import Timing


@app.command(epilog="Example: tenuto lab bench tiny-dit --batch 16")
def bench(
    model: ModelName,
    batch: Annotated[
        int, typer.Option(min=1, max=65_536, help="Samples in an evaluation. Guidance takes two for a picture.")
    ] = 16,
    tokens: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Text: tokens in a sequence. Default: the most there can be.")
    ] = None,
    budget: Annotated[float, typer.Option(min=0.1, max=1, help="Work of the lifetime schedule that is timed.")] = 0.35,
    steps: Annotated[
        int, typer.Option(min=10, max=1000, help="Steps of that schedule. The others are half as long.")
    ] = 50,
    repeats: Annotated[
        int, typer.Option(min=1, max=1000, help="Generations timed for each row. The median counts.")
    ] = 3,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the figures here, as JSON.")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Time a model here: in full and under schedules, by every way of running them."""
    import torch

    from tenuto.cli.app import check_device
    from tenuto.cli.console import print_json, progress, say
    from tenuto.errors import UsageError
    from tenuto.files import check_writable, write_json
    from tenuto.models import load
    from tenuto.provenance import provenance
    from tenuto_lab.speed.ladder import ceilings, ladder, measure, timed_network

    place = check_device(device)
    if output is not None:
        check_writable(output, reads=[model])
    loaded = load(model, device=place, dtype=torch.bfloat16 if place.type == "cuda" else None)
    family, config = loaded.architecture, loaded.config
    if tokens is not None and family.asks_for != "prompt":
        raise UsageError(f"--tokens has no effect on a model that draws, and {model} is one.")
    if tokens is not None and tokens > config.max_sequence_length:
        raise UsageError(f"{model} was made for {config.max_sequence_length} tokens at most, not {tokens}.")
    subject = timed_network(model, loaded.network, family, config, batch=batch, tokens=tokens)
    rungs = ladder(subject, budget, steps)
    rows: list[Timing] = []
    with progress(f"Timing {model}", len(rungs)) as advance:
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


def print_rows(rows: "list[Timing]") -> None:
    from rich.table import Table

    from tenuto.cli.console import out, quoted

    title = quoted(f"{rows[0].model}, {rows[0].setting}: milliseconds for an evaluation")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("way of running", "schedule"):
        table.add_column(column, no_wrap=True)
    for column in ("work", "ms", "spread", "over eager", "kept"):
        table.add_column(column, justify="right")
    for row in rows:
        if row.schedule == "nothing":  # a yardstick, not a schedule
            continue
        table.add_row(
            quoted(row.mode),
            quoted(row.schedule),
            f"{row.flop_budget:.0%}",
            f"{row.ms_per_evaluation:.3f}",
            f"{row.spread:.0%}",
            f"{row.speedup_over_eager or 1:.2f}×",
            f"{row.cache_bytes / 2**20:.1f} MiB" if row.cache_bytes else "",
        )
    out.print(table)
    out.print("[dim]work: share of the units' floating-point operations. This table says nothing about quality.[/]")
