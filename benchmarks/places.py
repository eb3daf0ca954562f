"""Where the scripts find what they need, and where they leave what they measure."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenuto.models import Model

ROOT = Path(__file__).parent.parent  # of the project


def results_of(script: str) -> Path:
    """The file that a script writes by default."""
    return ROOT / "results" / script / f"{script}.json"


def use_packages(folder: Path) -> None:
    """Let Python import packages that were installed into a folder (pip install --target) and not into this project."""
    sys.path.append(str(folder))


def own_network(name: str, device: str) -> "Model":
    """A network of this repository in float32: one that is part of the package, or one of the folder `weights`."""
    import torch

    import tenuto
    from tenuto.models import SHIPPED

    place = name if name in SHIPPED else str(ROOT / "weights" / name)
    return tenuto.load(place, device=torch.device(device), dtype=torch.float32)
