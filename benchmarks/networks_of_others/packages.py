"""What the loaders of networks from the Python package index share: a package's code and its weights."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from tenuto.errors import UsageError


def bare(name: str, packages: Path) -> Any:
    """A module without what its packages import first: units, tables, downloads."""
    *parents, _ = name.split(".")
    if not packages.joinpath(*parents).is_dir():
        raise UsageError(f"{packages} does not hold {parents[0]}; docs/benchmarks.md says how to get it.")
    for i in range(1, len(parents) + 1):
        parent = ModuleType(".".join(parents[:i]))
        parent.__path__ = [str(packages.joinpath(*parents[:i]))]
        sys.modules.setdefault(parent.__name__, parent)
    if str(packages) not in sys.path:
        sys.path.append(str(packages))  # the modules import einops
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{parents[0]} needs the package {error.name}, and {packages} does not hold it; docs/benchmarks.md says "
            "how to get it."
        ) from error


def read_weights(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"There is no {path}; docs/benchmarks.md says how to get it.")
    return torch.load(path, map_location="cpu", weights_only=True)


def loaded(module: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The module with these weights in float32; a missing or unknown name is an error."""
    module.load_state_dict(weights)
    return module.eval().requires_grad_(False)
