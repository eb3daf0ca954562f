"""`tenuto models`: the architectures, what can be held of each, and the models that ship."""

from collections import Counter
from typing import Any

from tenuto.cli.app import AsJson, app


@app.command(epilog="Example: tenuto models --json")
def models(as_json: AsJson = False) -> None:
    """List the architectures, what can be held of each and what stays live, and the models that ship."""
    from rich.table import Table

    from tenuto.cli.console import out, print_json
    from tenuto.models import SHIPPED, place_of
    from tenuto.models import architectures as known

    architectures = [_architecture(name) for name in known()]
    here = [_shipped(name) for name in SHIPPED if place_of(name)]
    if as_json:
        print_json({"architectures": architectures, "shipped": here})
        return
    for one in architectures:
        kinds = ", ".join(f"{count} {kind.replace('_', '-')}" for kind, count in one["units_by_kind"].items())
        out.print(f"[bold]{one['name']}[/]  {one['title']}")
        facts = {
            "published size": f"{one['published']}: {one['parameters']:,} parameters, {one['units']} units ({kinds})",
            "held": one["held"],
            "stays live": one["live"],
            "theory": f"{one['theory']} coverage by the paper's argument",
            "tested with": one["tested_with"],
        }
        lines = Table.grid(padding=(0, 2))
        lines.add_column(justify="right", style="dim", min_width=16)
        lines.add_column()
        for name, value in facts.items():
            lines.add_row(name, value)
        out.print(lines)
    table = Table(title="\nModels that ship", title_justify="left", box=None, pad_edge=False)
    for name in ("name", "architecture", "asked for by"):
        table.add_column(name)
    for name in ("parameters", "units"):
        table.add_column(name, justify="right")
    for one in here:
        cells = one["name"], one["architecture"], one["asks_for"], f"{one['parameters']:,}", str(one["units"])
        table.add_row(*cells)
    out.print(table)


def _architecture(name: str) -> dict[str, Any]:
    import torch

    from tenuto.models import architecture

    family = architecture(name)
    config = family.config()
    with torch.device("meta"):
        state = family.network(config).state_dict()
    units = family.units(config)
    return {
        "name": family.name,
        "title": family.title,
        "published": family.published,
        "parameters": sum(value.numel() for value in state.values()),
        "units": len(units),
        "units_by_kind": dict(Counter(unit.kind for unit in units)),
        "held": family.held,
        "live": family.live,
        "theory": family.theory,
        "asks_for": family.asks_for,
        "tested_with": family.tested_with,
    }


def _shipped(name: str) -> dict[str, Any]:
    from math import prod

    from tenuto.models import open_model

    stored = open_model(name)
    return {
        "name": name,
        "architecture": stored.architecture.name,
        "asks_for": stored.architecture.asks_for,
        "parameters": sum(prod(shape) for shape in stored.checkpoint.shapes.values()),
        "units": len(stored.units),
    }
