"""Where measured results lie, and the frontier among them."""

from pathlib import Path
from typing import Any

from tenuto.files import read_json

PROJECT = Path(__file__).parents[3]  # of a checkout
FRONTIER = Path("frontier") / "frontier.json"  # within a folder of results


def results_folder() -> Path:
    """The folder `results` here if there is one, or else that of the checkout that this package lies in."""
    here, project = Path("results"), PROJECT / "results"
    return project if not here.is_dir() and project.is_dir() else here


def known_frontier(folder: Path) -> dict[str, Any] | None:
    """What `python -m benchmarks.frontier` wrote into a folder of results; None where nothing was measured yet."""
    path = folder / FRONTIER
    return read_json(path, "frontier") if path.is_file() else None
