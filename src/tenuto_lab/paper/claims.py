"""The experiments' results beside the paper's figures: all files of a results folder as one table."""

from pathlib import Path

from tenuto.showing.page import Table
from tenuto_lab.paper.experiment_report import HEAD as ROW
from tenuto_lab.paper.experiment_report import cells
from tenuto_lab.paper.experiment_results import read_rows

HEAD = ("experiment", *ROW)


def claims_table(folder: Path) -> Table | None:
    """One row for each measured quantity; None if no experiment has run yet."""
    rows = [row for path in sorted(folder.glob("*.json")) for row in _rows(path)]
    return Table("Experiments", HEAD, rows) if rows else None


def _rows(path: Path) -> list[list[str]]:
    return [[path.stem, *cells(row)] for row in read_rows(path)]
