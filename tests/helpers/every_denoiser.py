"""Every denoiser class of the installed diffusers, small and with random weights, and a loop that runs it.

denoisers.json says how: the configs and the shapes of the inputs of diffusers' own tests (scripts/denoiser_configs.py).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers.models import modeling_utils
from torch import Tensor, nn

KNOWN: dict[str, Any] = json.loads((Path(__file__).parent / "denoisers.json").read_text(encoding="utf-8"))
FOLDERS = ("diffusers.models.transformers.", "diffusers.models.unets.")


def denoiser_names() -> list[str]:
    """Every public class of diffusers' folders of transformers and UNets that is a model."""
    found = []
    for name in dir(diffusers):
        kind = getattr(diffusers, name)
        if (
            isinstance(kind, type)
            and issubclass(kind, modeling_utils.ModelMixin)
            and kind.__module__.startswith(FOLDERS)
        ):
            found.append(name)
    return found


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    network = getattr(diffusers, name)(**KNOWN[name]["config"]).eval().requires_grad_(False)
    for parameter in network.parameters():  # many start with gates of zero, and would then predict nothing
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    return network


def inputs_of(name: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)

    def made(one: dict[str, Any]) -> Any:
        ((kind, known),) = one.items()
        if kind == "value":
            return known
        if kind == "dict":
            return {key: made(part) for key, part in known}
        if kind in ("list", "tuple"):
            return [made(part) for part in known] if kind == "list" else tuple(made(part) for part in known)
        dtype = getattr(torch, known["dtype"])
        if "values" in known:
            return torch.tensor(known["values"], dtype=dtype).reshape(known["shape"])
        return torch.randn(known["shape"], generator=generator).to(dtype)

    return {key: made(one) for key, one in KNOWN[name]["inputs"].items()}


def first_tensor(value: Any) -> Tensor:
    """The prediction in what a denoiser returned."""
    if isinstance(value, Tensor):
        return value
    parts = list(value.values()) if isinstance(value, dict) else list(value)
    return first_tensor(next(part for part in parts if part is not None))


class Loop:
    """A plain sampling loop: the denoiser's prediction goes to a scheduler, whose sample goes to the denoiser."""

    def __init__(self, name: str, scheduler: Any, steps: int) -> None:
        self.network, self.given = make(name), inputs_of(name)
        self.scheduler, self.steps = scheduler, steps
        self.calls = 0
        self.network.register_forward_hook(self._count)
        self._key = next(key for key, value in self.given.items() if _has_floats(value))

    def _count(self, *_: Any) -> None:
        self.calls += 1

    def run(self, network: Callable[..., Any] | None = None) -> Tensor:
        self.calls = 0
        self.scheduler.set_timesteps(self.steps)
        call = network or self.network
        sample: Tensor | None = None
        for t in self.scheduler.timesteps:
            scaled = sample
            if sample is not None and hasattr(self.scheduler, "scale_model_input"):
                scaled = self.scheduler.scale_model_input(sample, t)
            prediction = first_tensor(call(**{**self.given, self._key: self._input(scaled)})).float()
            if sample is None:
                sample = torch.randn(prediction.shape, generator=torch.Generator().manual_seed(2))
                sample = sample * float(getattr(self.scheduler, "init_noise_sigma", 1.0))
            sample = self.scheduler.step(prediction, t, sample).prev_sample
        assert sample is not None
        return sample

    def _input(self, sample: Tensor | None) -> Any:
        """The denoiser's input at a sample. Shapes differ (conditions, patches), so it moves with the mean."""
        moved = 0.0 if sample is None else float(sample.mean())

        def shifted(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value + moved if value.is_floating_point() else value
            return [shifted(part) for part in value] if isinstance(value, list) else value

        return shifted(self.given[self._key])


def _has_floats(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() and value.ndim > 1
    return isinstance(value, list) and any(map(_has_floats, value))
