"""How scores and lifetimes move when the weights are quantised: int8, fp8 and 4 bits, rounded and back to float.

    scores_quantised("tiny-dit", "int8")

int8   one scale for each row of a matrix, 255 levels
fp8    float8_e4m3, one scale for each tensor
int4   one scale for each group of 64 numbers of a row, 15 levels
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models import Model, Stored, open_model
from tenuto.models.checkpoint import ModuleTensors, Tensors
from tenuto.scheduling.units import Granularity
from tenuto_lab.scoring.scores import Scores, score_tensors

Bits = Literal["int8", "fp8", "int4"]
GROUP = 64  # numbers that share a scale in 4 bits


def quantised(weight: Tensor, bits: Bits) -> Tensor:
    """A weight as its quantised form would give it back, in float32."""
    if bits not in get_args(Bits):
        raise UsageError(f"Weights are quantised to {', '.join(get_args(Bits))}, not to {bits!r}.")
    flat = weight.float().flatten(1) if weight.ndim > 1 else weight.float()[None]
    if bits == "fp8":
        scale = flat.abs().max().clamp(min=1e-12) / torch.finfo(torch.float8_e4m3fn).max
        back = (flat / scale).to(torch.float8_e4m3fn).float() * scale
    elif bits == "int8":
        back = _rounded(flat, 127)
    else:
        rest = -flat.shape[1] % GROUP
        groups = torch.nn.functional.pad(flat, (0, rest)).reshape(len(flat), -1, GROUP)
        back = _rounded(groups, 7).reshape(len(flat), -1)[:, : flat.shape[1]]
    return back.reshape(weight.shape)


def _rounded(x: Tensor, levels: int) -> Tensor:
    """x with one scale along its last axis, and whole numbers from −levels to levels."""
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / levels
    return (x / scale).round().clamp(-levels, levels) * scale


class QuantisedTensors:
    """A checkpoint whose matrices are read as their quantised form gives them back."""

    def __init__(self, tensors: Tensors, bits: Bits) -> None:
        self._tensors, self._bits = tensors, bits

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict(self._tensors.shapes)

    def read(self, key: str) -> Tensor:
        return quantised(self._tensors.read(key), self._bits)


def scores_quantised(model: Model | Stored | str, bits: Bits, granularity: Granularity = "branch") -> Scores:
    """The scores of a model with quantised weights. No network is built for it."""
    source = open_model(model) if isinstance(model, str) else model
    tensors: Tensors = source.checkpoint if isinstance(source, Stored) else ModuleTensors(source.network)
    return score_tensors(
        QuantisedTensors(tensors, bits),
        source.units,
        model=source.name,
        architecture=source.architecture.name,
        granularity=granularity,
    )
