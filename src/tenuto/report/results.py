"""Where measured results lie, and the frontier among them."""

from pathlib import Path
from typing import Any

from tenuto.files import read_json

PROJECT = Path(__file__).parents[3]  # of a checkout


def results_folder() -> Path:
    """`results` here, or else of the checkout that the package lies in."""
    here, project = Path("results"), PROJECT / "results"
    return project if not here.is_dir() and project.is_dir() else here


def known_frontier(folder: Path) -> dict[str, Any] | None:
    """What `tenuto frontier` or benchmarks/frontier.py wrote into a folder; None where nothing was measured yet."""
    path = folder / "frontier.json"
    return read_json(path, "frontier") if path.is_file() else None
