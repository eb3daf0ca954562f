"""The architectures, and how a model is found, opened and built.

Adding an architecture is one file beside this one and its name in OWN, or an entry point (tenuto.laboratory).
"""

import math
import os
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tenuto.errors import CheckpointError, TenutoError, first_line
from tenuto.files import read_json
from tenuto.laboratory import ARCHITECTURES as OFFERED
from tenuto.laboratory import offered, offers
from tenuto.models.architecture import Architecture, ConfigError, NoiseLevels, check_size
from tenuto.models.checkpoint import (
    Checkpoint,
    ModuleTensors,
    check_shapes,
    config_of,
    fingerprint_of,
    open_checkpoint,
)
from tenuto.scheduling.schedule import Schedule
from tenuto.scheduling.units import Unit

OWN = ("llada", "dream", "dit")  # each is a module here; the laboratory offers more
SHIPPED = ("small-llada", "reasoning-llada", "tiny-dit", "tiny-uvit", "tiny-sdxl", "natural-dit")
PACKAGE = Path(str(resources.files("tenuto")))
HUB_FILES = ("{}config.json", "{}*.safetensors", "{}*.safetensors.index*.json")
OWN_FIELDS = ("model_type", "labels", "guidance")  # in a config.json of ours, beside the network's own
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt")


def architectures() -> tuple[str, ...]:
    """The names of all architectures: our own, and those that the laboratory offers."""
    return *OWN, *offers(OFFERED)


def architecture(name: str) -> Architecture:
    if name not in architectures():
        raise CheckpointError(f"There is no architecture {name!r}; there are: {', '.join(architectures())}.")
    own = import_module(f"tenuto.models.{name}").ARCHITECTURE if name in OWN else None
    found: Architecture = own or offered(name, OFFERED)
    return found


@dataclass(frozen=True)
class Stored:
    """A checkpoint whose architecture is known and whose every key and shape was checked; nothing is loaded yet."""

    name: str  # as the user called it
    path: Path
    checkpoint: Checkpoint
    architecture: Architecture
    config: Any
    labels: tuple[str, ...]  # class names, where the config has them
    units: tuple[Unit, ...]

    @cached_property
    def levels(self) -> NoiseLevels | None:
        """The noise levels of its training: from its pipeline's scheduler config if there is one, else its family's."""
        beside, family = self.path / "scheduler" / "scheduler_config.json", self.architecture.noise
        if family is None or not beside.exists():
            return family
        return family.from_scheduler(read_json(beside, "scheduler config"), str(beside))


@dataclass(frozen=True)
class Model:
    """A network in memory, and the facts about it that the schedule and the sampler need."""

    name: str
    architecture: Architecture
    config: Any
    labels: tuple[str, ...]
    units: tuple[Unit, ...]
    network: nn.Module
    stored: Stored | None = None  # the checkpoint that the network was loaded from, if there is one

    @property
    def path(self) -> Path | None:
        """The file or directory that the model was loaded from, if there is one."""
        return None if self.stored is None else self.stored.path

    @cached_property
    def fingerprints(self) -> frozenset[str]:
        """The fingerprints of the scored weights: as stored, and in the precision they run in. Reads these weights."""
        scored = {key for unit in self.units for key in unit.tensors()}
        live = fingerprint_of(ModuleTensors(self.network), scored)
        return frozenset({live} if self.stored is None else {live, fingerprint_of(self.stored.checkpoint, scored)})

    def check_fits(self, schedule: Schedule) -> None:
        """Refuse a schedule that was not made for this model."""
        schedule.check_fits([unit.name for unit in self.units], self.name, lambda: self.fingerprints)

    @cached_property
    def levels(self) -> NoiseLevels | None:
        """The noise levels of its training: from its pipeline's scheduler config if there is one, else its family's."""
        return self.architecture.noise if self.stored is None else self.stored.levels

    @property
    def noise(self) -> NoiseLevels | None:
        """The same, for whoever knows only networks that predict noise."""
        if self.levels is not None and self.levels.flow:
            raise ConfigError(
                f"{self.name} predicts a flow (flow_prediction), and only predictions of noise are known here"
            )
        return self.levels

    @property
    def guidance(self) -> float:
        """The scale of guidance that suits the model: what its config.json says, else its family's."""
        config = None if self.stored is None else self.stored.checkpoint.config
        return float((config or {}).get("guidance", self.architecture.guidance))

    def __repr__(self) -> str:
        return f"<Model {self.name}: {self.architecture.name}, {len(self.units)} units, {self.dtype} on {self.device}>"

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of a language model, stored beside its weights."""
        from tenuto.models.tokenizer import load_tokenizer

        return load_tokenizer(self._directory())

    @cached_property
    def text_encoder(self) -> Any:
        """The text encoder of a model that draws from captions, stored beside its UNet."""
        if self.architecture.captions is None:
            raise TenutoError(f"{self.name} draws no captions.")
        return self.architecture.captions(self._directory(), self.device, self.dtype)

    def _directory(self) -> Path:
        if self.path is None:
            raise TenutoError(f"{self.name} was not loaded from a directory, so it has no text model beside it.")
        return self.path if self.path.is_dir() else self.path.parent


def find(name: str) -> Path:
    """The place of a shipped model, a file or directory, or a model on the hub (fetched if need be)."""
    if name in SHIPPED:
        return shipped(name)
    try:
        path = Path(name).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError, ValueError) as error:  # no permission, no such home, or no valid name of a file
        why = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{name!r} cannot be opened: {why}.") from error
    if name.count("/") == 1 and not name.startswith((".", "/", "~")) and not path.suffix:
        return _from_hub(name, meant(name))
    raise CheckpointError(
        f"There is no model {name!r}: it is no file or directory here, and not one of the shipped models "
        f"({', '.join(SHIPPED)}).{meant(name)} A hub id looks like owner/name."
    )


def meant(name: str) -> str:
    """` Did you mean …?`: a shipped model, or a neighbour of the path that was named; empty if nothing is near."""
    if near := get_close_matches(name, SHIPPED, 1):
        return f" Did you mean {near[0]}?"
    path = Path(name).expanduser()
    try:
        near = get_close_matches(path.name, [one.name for one in path.parent.iterdir()], 1)
    except OSError:  # there is no such directory, or it may not be read
        return ""
    return f" Did you mean {path.parent / near[0]}?" if near else ""


def is_pipeline(place: Path) -> bool:
    """Whether a directory holds a whole diffusers pipeline, which then draws by itself."""
    return (place / "model_index.json").exists() and (place / "unet").is_dir()


def place_of(name: str) -> Path | None:
    """Where a shipped model or classifier lies; None if it is not here.

    The demo's models are part of the package. The others are too large for the package and lie in the project's
    folder `weights`.
    """
    named = os.environ.get("TENUTO_WEIGHTS")
    folders = [PACKAGE / "weights", *([Path(named)] if named else []), PACKAGE.parents[1] / "weights"]
    return next((folder / name for folder in folders if (folder / name).is_dir()), None)


def shipped(name: str) -> Path:
    """Where a shipped model or classifier lies."""
    if (place := place_of(name)) is not None:
        return place
    raise CheckpointError(
        f"{name} is not part of the installed package: it lies in the folder weights of the project. Set "
        "the variable TENUTO_WEIGHTS to that folder."
    )


def open_model(name: str) -> Stored:
    """Find a checkpoint, recognise its architecture, and check that every key and shape fits the architecture."""
    path = find(name)
    named = _named(*config_of(path))
    checkpoint = open_checkpoint(path)
    family = named or _recognised(checkpoint)
    try:
        config, labels = _config(checkpoint, family)
        check_size(config)
        with torch.device("meta"):
            expected = {key: tuple(value.shape) for key, value in family.network(config).state_dict().items()}
    except ConfigError as error:
        raise ConfigError(f"The config of {checkpoint.path} makes no {family.name}: {error}.") from error
    except (RuntimeError, TypeError, OverflowError, ValueError, MemoryError) as error:  # sizes that torch cannot count
        raise ConfigError(
            f"The config of {checkpoint.path} makes no {family.name}: no network can have these sizes "
            f"({first_line(error)})."
        ) from error
    try:
        checkpoint = checkpoint.renamed(family.stored_names(checkpoint.shapes, config))
    except KeyError as error:
        raise CheckpointError(
            f"{checkpoint.path} does not fit its config: it has no tensor {error.args[0]}."
        ) from error
    check_shapes(checkpoint.path, checkpoint.shapes, expected)
    return Stored(name, path, checkpoint, family, config, labels, family.units(config))


def load(name: str | Path, *, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> Model:
    """Load a model for inference.

    name    a shipped model, a file, a directory, or a hub id
    dtype   the precision to run in; by default float32 on the CPU and the checkpoint's own elsewhere
    """
    stored = open_model(str(name))
    if dtype is None and torch.device(device).type == "cpu":
        dtype = torch.float32
    state = {}
    for key in stored.checkpoint.shapes:
        tensor = stored.checkpoint.read(key)
        if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"{stored.checkpoint.path}: the tensor {key} is {kind}: dequantise the weights first."
            )
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{stored.checkpoint.path}: the tensor {key} holds values that are NaN or infinite.")
        state[key] = tensor.to(device=device, dtype=dtype, copy=True)
    with torch.device("meta"):
        network = stored.architecture.network(stored.config)
    network.load_state_dict(state, assign=True)
    network.to(device)  # moves the computed tables, which the checkpoint does not store
    network.eval().requires_grad_(False)
    return Model(stored.name, stored.architecture, stored.config, stored.labels, stored.units, network, stored)


def _named(path: Path, config: dict[str, Any] | None) -> Architecture | None:
    """The architecture that a config.json names, before any tensor is read; None without a config.json."""
    if config is None:
        return None
    kind, class_name = config.get("model_type"), config.get("_class_name")
    if isinstance(kind, str):
        if kind.lower().startswith("llada2"):
            raise CheckpointError(
                f"{path} is a LLaDA2: a mixture of experts with block-causal attention. "
                "Neither is implemented; LLaDA-8B, LLaDA-1.5 and Dream-7B are."
            )
        if kind.lower() not in architectures():  # published configs of Dream write "Dream"
            raise CheckpointError(
                f"The config.json of {path} says model_type {kind!r}; known are {', '.join(architectures())}."
            )
        return architecture(kind.lower())
    for family in map(architecture, architectures()):
        if class_name in family.class_names:
            return family
    raise CheckpointError(
        f'The config.json of {path} has no "model_type"; it is one of: {", ".join(architectures())}'
        + (f". (A diffusers {class_name} is none of them.)" if class_name else ".")
    )


def _recognised(checkpoint: Checkpoint) -> Architecture:
    """The architecture whose tensors a checkpoint without a config.json has."""
    for family in map(architecture, architectures()):
        if any(key in checkpoint.shapes for key in family.signatures):
            return family
    if lora := [key for key in checkpoint.shapes if "lora" in key.lower()]:
        raise CheckpointError(
            f"{checkpoint.path} holds {len(lora)} LoRA tensor(s) ({', '.join(lora[:3])}, …), not a model: merge it "
            "into its base model first."
        )
    first = ", ".join(list(checkpoint.shapes)[:3]) or "none"
    raise CheckpointError(
        f"{checkpoint.path} is no checkpoint of a known architecture ({', '.join(architectures())}), and no "
        f"config.json beside it says otherwise. Its first tensors are {first}."
    )


def _config(checkpoint: Checkpoint, family: Architecture) -> tuple[Any, tuple[str, ...]]:
    if checkpoint.config is None:
        try:
            return family.infer_config(checkpoint.shapes), ()
        except KeyError as error:
            raise CheckpointError(
                f"{checkpoint.path} looks like a {family.name}, but has no tensor {error.args[0]}."
            ) from error
        except ValueError as error:  # a tensor has another rank, or there are no blocks
            raise CheckpointError(f"{checkpoint.path} looks like a {family.name}, but its tensors do not.") from error
    given = {key: value for key, value in checkpoint.config.items() if key not in OWN_FIELDS}
    labels, guidance = checkpoint.config.get("labels", []), checkpoint.config.get("guidance", 0)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ConfigError("its labels should be a list of class names")
    if isinstance(guidance, bool) or not isinstance(guidance, int | float) or not 0 <= guidance < math.inf:
        raise ConfigError(f"its guidance should be a number from 0 on, not {guidance!r}")
    return family.config_from(given), tuple(labels)


def _from_hub(name: str, meant: str = "") -> Path:
    """Fetch only what a denoiser needs, from a plain repository or from a diffusers pipeline."""
    from huggingface_hub import snapshot_download

    patterns = [pattern.format(folder) for folder in ("", "unet/", "transformer/") for pattern in HUB_FILES] + list(
        TOKENIZER_FILES
    )
    # In the hub's patterns a star also matches slashes. The excluded parts can be larger than the denoiser.
    others = ["vae*/*", "text_encoder*/*", "safety_checker/*", "image_encoder/*"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=others))
    except Exception as error:  # the hub's client raises many kinds, and offline mode its own
        raise TenutoError(
            f"Could not fetch {name} from the hub, and there is no such path here: {first_line(error)}{meant}"
        ) from error
