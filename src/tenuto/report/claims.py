"""What the experiments found, beside what the paper says: every file of a results folder as one table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenuto.errors import TenutoError
from tenuto.files import read_json
from tenuto.report.page import Table

HEAD = ("experiment", "quantity", "model", "the paper", "measured", "interval", "holds")


def claims_table(folder: Path) -> Table | None:
    """One row for each quantity that was measured; None where no experiment has been run yet."""
    rows = [row for path in sorted(folder.glob("*.json")) for row in _rows(path)]
    return Table("Experiments", HEAD, rows) if rows else None


def _rows(path: Path) -> list[list[str]]:
    found = read_json(path, "experiment's result").get("rows")
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise TenutoError(f"{path} is no experiment's result: it has no list of rows.")
    return [[path.stem, *_cells(row)] for row in found]


def _cells(row: Mapping[str, Any]) -> list[str]:
    names = ("quantity", "model", "paper", "measured", "interval", "holds")
    return [_shown(row.get(name)) for name in names]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return " to ".join(_shown(one) for one in value)
    return str(value)
