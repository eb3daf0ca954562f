"""Samples kept on disk, so that ours can be measured again without drawing the full runs and the rivals again."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenuto.files import replacing

Key = Mapping[str, Any]  # what the samples depend on


class Kept:
    """A folder of samples. A file's name follows from everything that the samples depend on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: Key) -> tuple[Tensor, int] | None:
        """The samples, and how often the network was evaluated for them."""
        path = self._path(key)
        if not path.is_file():
            return None
        found = torch.load(path, weights_only=True)
        return found["samples"], found["evaluations"]

    def keep(self, key: Key, samples: Tensor, evaluations: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._path(key)) as path:
            torch.save({"samples": samples, "evaluations": evaluations}, path)

    def _path(self, key: Key) -> Path:
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
        return self.folder / f"{name}.pt"
