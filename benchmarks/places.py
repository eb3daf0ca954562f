"""Where the scripts find what they need, and where they leave what they measure."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent  # of the project


def results_of(script: str) -> Path:
    """The file that a script writes by default."""
    return ROOT / "results" / script / f"{script}.json"


def use_packages(folder: Path) -> None:
    """Let Python import packages that were installed into a folder (pip install --target) and not into this project."""
    sys.path.append(str(folder))
