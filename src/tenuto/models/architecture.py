"""What the package must know of a network family: its config, its module, its units."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tenuto.errors import CheckpointError
from tenuto.units import Unit


class ConfigError(CheckpointError):
    """A config holds a value that no network can have."""


@dataclass(frozen=True)
class NoiseLevels:
    """The β of the diffusion a family is trained with, in diffusers' words."""

    schedule: str
    start: float
    end: float
    timesteps: int = 1000


@dataclass(frozen=True)
class Architecture:
    name: str  # `model_type` in config.json
    title: str
    config: type[Any]  # a frozen dataclass that checks itself
    network: Callable[[Any], Any]  # config -> nn.Module whose forward takes `residual`
    units: Callable[[Any], tuple[Unit, ...]]  # config -> units, in the order they run
    infer_config: Callable[[Mapping[str, tuple[int, ...]]], Any]  # shapes of a bare file -> config
    signature: str  # a tensor that only this family has
    noise: NoiseLevels | None = None  # of image models
