"""The weights that a live denoiser uses, dequantised and with its active adapters."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from tenuto.errors import CheckpointError

OF_BITSANDBYTES = ("Params4bit", "Int8Params")


class LiveTensors:
    """The tensors that a denoiser's units are scored by, each as the network multiplies by it."""

    def __init__(self, module: nn.Module, keys: Iterable[str]) -> None:
        """keys: the names that the weights have without adapters."""
        self._layers: dict[str, nn.Module] = {}
        for key in keys:
            path, _, name = key.rpartition(".")
            try:
                layer = module.get_submodule(path)
            except AttributeError:
                continue
            if name == "weight" and isinstance(getattr(_base(layer), "weight", None), Tensor):
                self._layers[key] = layer
        self.shapes: Mapping[str, tuple[int, ...]] = {key: _shape(_base(layer)) for key, layer in self._layers.items()}

    def read(self, key: str) -> Tensor:
        layer = self._layers[key]
        weight = _dequantised(_base(layer), key)
        for adapter in _added(layer):
            delta = layer.get_delta_weight(adapter)  # type: ignore[operator]
            weight = weight + delta.to(weight.device, weight.dtype).view_as(weight)
        return weight.detach()


def _base(layer: nn.Module) -> nn.Module:
    """The layer without its adapters."""
    while isinstance(inner := getattr(layer, "base_layer", None), nn.Module):
        layer = inner
    return layer


def _added(layer: Any) -> list[str]:
    """The adapters whose matrices are added to the base layer's matrix at every call."""
    if not hasattr(layer, "get_delta_weight") or layer.merged or layer.disable_adapters:
        return []
    return [name for name in layer.active_adapters if name in layer.scaling]


def _shape(layer: nn.Module) -> tuple[int, ...]:
    """The shape of a layer's weight matrix; the tensor of a packed weight has another shape."""
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return tuple(weight.shape)


def _dequantised(layer: Any, key: str) -> Tensor:
    weight: Tensor = layer.weight
    kind = type(weight).__name__
    if weight.is_meta:
        raise CheckpointError(f"{key} is offloaded and holds no values now: enable or score before offloading.")
    if kind in OF_BITSANDBYTES:
        return _from_bitsandbytes(weight, layer, key)
    if type(weight).dequantize is not Tensor.dequantize:  # torchao's and quanto's tensors
        return weight.dequantize()
    if not weight.is_floating_point() or weight.dtype.itemsize == 1:
        raise CheckpointError(
            f"{key} holds {str(weight.dtype).removeprefix('torch.')} numbers as a {kind}, which nobody here can "
            "dequantise. torchao's, quanto's and bitsandbytes' weights can be, with their package installed."
        )
    return weight


def _from_bitsandbytes(weight: Tensor, layer: Any, key: str) -> Tensor:
    try:
        import bitsandbytes  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError as error:
        raise CheckpointError(
            f"{key} was quantised by bitsandbytes, which is not installed: pip install bitsandbytes"
        ) from error
    from diffusers.quantizers.bitsandbytes.utils import dequantize_bnb_weight

    found: Tensor = dequantize_bnb_weight(weight, getattr(layer, "state", None))
    return found
