"""What the experiments found, beside what the paper says: every file of a results folder as one table."""

from pathlib import Path

from tenuto.errors import TenutoError
from tenuto.files import read_json
from tenuto.showing.page import Table
from tenuto_lab.paper.experiment_report import HEAD as ROW
from tenuto_lab.paper.experiment_report import cells

HEAD = ("experiment", *ROW)


def claims_table(folder: Path) -> Table | None:
    """One row for each quantity that was measured; None where no experiment has been run yet."""
    rows = [row for path in sorted(folder.glob("*.json")) for row in _rows(path)]
    return Table("Experiments", HEAD, rows) if rows else None


def _rows(path: Path) -> list[list[str]]:
    found = read_json(path, "experiment's result").get("rows")
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise TenutoError(f"{path} is no experiment's result: it has no list of rows.")
    return [[path.stem, *cells(row)] for row in found]
