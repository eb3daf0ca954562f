"""What the package must know about a network family: its config, module and units, and which parts are held."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tenuto.errors import CheckpointError
from tenuto.scheduling.units import Unit

Shapes = Mapping[str, tuple[int, ...]]
LARGEST = 10_000_000  # number allowed in a config; the largest real ones are sizes of vocabularies


class ConfigError(CheckpointError):
    """A config holds a value that no network can have."""


@dataclass(frozen=True)
class NoiseLevels:
    """The noise levels (β) that a family was trained with, under diffusers' names.

    A flow has no β: its levels are even, sample = (1 − s) · clean + s · noise, and its timesteps are shares of noise.
    """

    schedule: str
    start: float
    end: float
    timesteps: int = 1000
    offset: int = 0  # added to DDIM's timesteps
    ends_clean: bool = True  # True: DDIM's last step removes all noise; False: it ends at the lowest noise level
    flow: bool = False  # the network predicts the velocity of flow matching, noise − clean

    def from_scheduler(self, config: Mapping[str, Any], where: str) -> "NoiseLevels":
        """The noise levels in a diffusers scheduler's config; a missing entry keeps its value from here."""
        prediction = config.get("prediction_type", "epsilon")
        if prediction == "flow_prediction" and config.get("shift", 1.0) == 1.0:
            return replace(self, timesteps=config.get("num_train_timesteps", self.timesteps), flow=True)
        if prediction != "epsilon":
            raise ConfigError(
                f"{where}: the model predicts {prediction!r}, and only noise and flows without a shift are known here"
            )
        if config.get("trained_betas") is not None:
            raise ConfigError(f"{where}: its noise levels are a list of betas, which is not known here")
        return NoiseLevels(
            config.get("beta_schedule", self.schedule),
            config.get("beta_start", self.start),
            config.get("beta_end", self.end),
            config.get("num_train_timesteps", self.timesteps),
            config.get("steps_offset", self.offset),
            config.get("set_alpha_to_one", self.ends_clean),
        )


def same_names(shapes: Shapes, config: Any) -> Mapping[str, str]:
    """The network and the file use the same names."""
    return {key: key for key in shapes}


@dataclass(frozen=True)
class Architecture:
    name: str  # `model_type` in config.json
    title: str
    config: type[Any]  # a frozen dataclass that checks itself; its defaults have the size that `published` names
    published: str  # the model whose size the config's defaults have
    network: Callable[[Any], Any]  # config -> nn.Module whose forward takes `residual`
    units: Callable[[Any], tuple[Unit, ...]]  # config -> units, in the order they run
    infer_config: Callable[[Shapes], Any]  # shapes of a bare file -> config
    signatures: tuple[str, ...]  # for each layout of its files, one tensor that no other family has
    asks_for: Literal["class", "caption", "prompt"]  # the input of a generation
    theory: Literal["direct", "partial", "heuristic"]  # how far the paper's argument covers the family
    held: str
    live: str
    tested_with: str  # which checkpoints and references its code was run against
    guidance: float  # the default scale
    held_time: float  # share of an evaluation's time that is left when everything is held (benchmarks/ladder.py)
    noise: NoiseLevels | None = None  # of image models
    remasking: Literal["low_confidence", "margin", "entropy", "random"] = "low_confidence"  # of language models
    captions: Callable[[Any, Any, Any], Any] | None = None  # (directory, device, dtype) -> the encoder of captions
    class_names: tuple[str, ...] = ()  # `_class_name` in a diffusers config.json
    read_config: Callable[[Mapping[str, Any]], Any] | None = None  # config.json -> config; None: config_from_fields
    # (shapes of a file, config) -> for each tensor of the network, its name in the file
    stored_names: Callable[[Shapes, Any], Mapping[str, str]] = same_names

    def config_from(self, values: Mapping[str, Any]) -> Any:
        return self.read_config(values) if self.read_config else config_from_fields(self.config, values)


LAYERS = ("depth", "n_layers", "num_hidden_layers")
WIDTHS = ("hidden_size", "d_model", "embed_dim")
MOST_LAYERS, MOST_BYTES = 10_000, 2**44


def check_size(config: Any) -> None:
    """Refuse a network that no machine can hold, before any part of it is built."""
    layers = max((getattr(config, name) for name in LAYERS if isinstance(getattr(config, name, None), int)), default=1)
    width = max((getattr(config, name) for name in WIDTHS if isinstance(getattr(config, name, None), int)), default=1)
    size = getattr(config, "input_size", getattr(config, "img_size", 1))
    tokens = (size // max(1, getattr(config, "patch_size", 1))) ** 2 if isinstance(size, int) else 1
    least = 4 * width * (4 * layers * width + tokens)  # bytes of attention and position table alone
    if layers > MOST_LAYERS or least > MOST_BYTES:
        raise ConfigError(f"{layers:,} layers of width {width:,} take {least / 2**30:,.0f} GiB at least")


def config_from_fields(config: type[Any], values: Mapping[str, Any]) -> Any:
    """Make a config from a JSON object with its fields; each value must have the type of the field's default."""
    known = {field.name for field in fields(config)}
    if unknown := [key for key in values if key not in known]:
        raise ConfigError(f"it has unknown argument(s) {', '.join(unknown)}")
    for key, value in values.items():
        kind = type(getattr(config, key))
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, (kind, int)):
            raise ConfigError(f"{key} should be of type {kind.__name__}, not {value!r}")
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ConfigError(f"{key} is {value:.3g}, and no machine holds a network of that size")
    return config(**values)
