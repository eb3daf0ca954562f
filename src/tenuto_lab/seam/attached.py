"""Shared by the architectures that use diffusers' modules: a config of constructor arguments, a module at the seam."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from tenuto.models.architecture import ConfigError


@dataclass(frozen=True)
class DiffusersConfig:
    """A diffusers config: the constructor's arguments as sorted pairs, lists as tuples."""

    arguments: tuple[tuple[str, Any], ...]
    class_name: ClassVar[str]

    def get(self, name: str, default: Any = None) -> Any:
        return dict(self.arguments).get(name, default)

    def to_diffusers(self) -> dict[str, Any]:
        return {"_class_name": self.class_name, **{key: _thawed(value) for key, value in self.arguments}}

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        size = self.get("sample_size")
        height, width = size if isinstance(size, tuple) else (size, size)
        if not isinstance(height, int) or not isinstance(width, int):
            raise ConfigError("it names no sample_size")
        return self.get("in_channels", 4), height, width


def frozen(config: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """A config that can be compared and hashed; diffusers' private entries (_…) are left out."""
    return tuple(sorted((key, _frozen(value)) for key, value in config.items() if not key.startswith("_")))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _thawed(value: Any) -> Any:
    return list(map(_thawed, value)) if isinstance(value, tuple) else value


class Attached(nn.Module):
    """One of diffusers' denoisers, at the seam; its state dict is the denoiser's own."""

    def __init__(self, config: DiffusersConfig) -> None:
        super().__init__()
        from tenuto_lab.seam.attachment import attach, build

        self.config = config
        self.denoiser: Any = build(config.to_diffusers())
        self.attachment = attach(self.denoiser, copied=True)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.denoiser.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return self.denoiser.load_state_dict(state_dict, strict=strict, assign=assign)
