"""A training that was killed goes on where it was: one file holds all that its next step depends on.

The file lies beside the weights, is replaced at once, and is removed when the training is complete. The same command
goes on from it by itself; a command with other settings is refused.
"""

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tenuto.errors import TenutoError, UsageError
from tenuto.files import replacing

NAME = "training-state.pt"


class Stateful(Protocol):
    """An optimiser."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


@dataclass(frozen=True)
class Resuming:
    """Where a training's state lies, what it depends on, and whose random numbers belong to it."""

    path: Path
    made_by: Mapping[str, Any]  # settings, network and data, as JSON; a state of anything else is refused
    generators: Sequence[torch.Generator] = field(default=())

    def save(
        self, network: nn.Module, average: Sequence[Tensor], optimizer: Stateful, progress: dict[str, Any]
    ) -> None:
        state = {
            "made_by": self._mark(),
            "network": network.state_dict(),
            "average": list(average),
            "optimizer": optimizer.state_dict(),
            "random": [one.get_state() for one in self.generators],
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "progress": progress,
        }
        with replacing(self.path) as temporary:
            torch.save(state, temporary)

    def load(self, network: nn.Module, average: Sequence[Tensor], optimizer: Stateful) -> dict[str, Any] | None:
        """Put everything back as it was, and return the progress; None if there is no file."""
        if not self.path.is_file():
            return None
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            made_by = json.loads(state["made_by"])
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
            raise TenutoError(f"{self.path} holds no state of a training; delete it to begin anew.") from error
        if (own := json.loads(self._mark())) != made_by:
            names = [name for name in own if own[name] != made_by.get(name)] or [*made_by]
            raise UsageError(
                f"{self.path} is the state of a training with another {names[0]} ({made_by.get(names[0])}, and now "
                f"{own.get(names[0])}). Repeat its command to go on, or delete the file to begin anew."
            )
        network.load_state_dict(state["network"])
        for kept, value in zip(average, state["average"], strict=True):
            kept.copy_(value)
        optimizer.load_state_dict(state["optimizer"])
        for generator, value in zip(self.generators, state["random"], strict=True):
            generator.set_state(value)
        torch.set_rng_state(state["torch"])
        if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["cuda"])
        progress: dict[str, Any] = state["progress"]
        return progress

    def finish(self, interrupted: bool) -> None:
        """Call it when the weights are saved. The state of an interrupted training stays, for the same command."""
        if interrupted and self.path.is_file():
            print(f"{self.path} holds the state of the training; the same command goes on from there.")
        else:
            self.path.unlink(missing_ok=True)

    def _mark(self) -> str:
        return json.dumps(self.made_by, sort_keys=True)
