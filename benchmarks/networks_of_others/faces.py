"""Anime faces, 64×64: an unconditional U-Net of 63.2 million parameters by wangjia184 (MIT licence).

    git clone --filter=blob:none --sparse https://github.com/wangjia184/diffusion_model
    cd diffusion_model && git sparse-checkout set docs/64x64_cosin_300

    case = faces.load(Path("diffusion_model/docs/64x64_cosin_300"))
    noise = case.network(x, timesteps)

The folder holds a TensorFlow.js graph, whose weights are stored in 8 bits. This module rebuilds the Keras layers in
PyTorch. Keras numbers its layers as they are made, so the layers here are made in the same order, and each takes the
name that comes next; every tensor of the file must be taken, in the shape expected.
"""

import math
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.networks_of_others.case import Case
from benchmarks.networks_of_others.levels import cosine_betas
from benchmarks.networks_of_others.tfjs import read_tensors
from tenuto.errors import UsageError

WIDTHS, ATTENDED, BLOCKS, TIME, GROUPS, LEVELS = (64, 128, 256, 512), (False, False, True, True), 2, 256, 8, 300
PREFIX = "StatefulPartitionedCall/unet/"
FIRST = {"conv2d": 67, "dense": 68, "group_normalization": 56, "attention_block": 11}  # numbers of the first layers


class Residual(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.shortcut = nn.Identity() if channels == width else nn.Conv2d(channels, width, 1)
        self.time = nn.Linear(TIME, width)
        self.norm1, self.conv1 = norm(channels), nn.Conv2d(channels, width, 3, padding=1)
        self.norm2, self.conv2 = norm(width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.shortcut(x)


class Attention(nn.Module):
    """Over all positions, one head. What it adds to is the normalised input, as in the original."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = norm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        tokens = x.flatten(2).transpose(1, 2)  # (batch, height · width, channels)
        found = F.scaled_dot_product_attention(self.query(tokens), self.key(tokens), self.value(tokens))
        return x + self.out(found).transpose(1, 2).reshape(x.shape)


class Down(nn.Conv2d):
    """Keras pads a convolution of stride 2 at the far side only, if the size is even."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 1, 0, 1)))


class Up(nn.Conv2d):
    def __init__(self, width: int) -> None:
        super().__init__(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.interpolate(x, scale_factor=2, mode="nearest"))


class Stage(nn.Module):
    """A residual block, and attention after it where the resolution is low."""

    def __init__(self, channels: int, width: int, attended: bool) -> None:
        super().__init__()
        self.residual = Residual(channels, width)
        self.attention = Attention(width) if attended else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.attention(self.residual(x, time))  # type: ignore[no-any-return]


class FacesUNet(nn.Module):
    """Predicts the noise. The parts are made in the order in which the original makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, WIDTHS[0], 3, padding=1)
        self.time1, self.time2 = nn.Linear(TIME, TIME), nn.Linear(TIME, TIME)
        kept = [WIDTHS[0]]  # channels of what the way down leaves for the way up
        self.down = nn.ModuleList()
        for width, attended in zip(WIDTHS, ATTENDED, strict=True):
            for _ in range(BLOCKS):
                self.down.append(Stage(kept[-1], width, attended))
                kept.append(width)
            if width != WIDTHS[-1]:
                self.down.append(Down(width))
                kept.append(width)
        middle = WIDTHS[-1]
        self.middle = nn.ModuleList([Stage(middle, middle, True), Stage(middle, middle, False)])
        channels = middle
        self.up = nn.ModuleList()
        for width, attended in reversed(list(zip(WIDTHS, ATTENDED, strict=True))):
            for _ in range(BLOCKS + 1):
                self.up.append(Stage(channels + kept.pop(), width, attended))
                channels = width
            if width != WIDTHS[0]:
                self.up.append(Up(width))
        self.norm = norm(WIDTHS[0])
        self.leave = nn.Conv2d(WIDTHS[0], 3, 3, padding=1)

    def forward(self, x: Tensor, timesteps: Tensor) -> Tensor:
        time = self.time2(F.silu(self.time1(embedded(timesteps).to(x.dtype))))
        x = self.enter(x)
        kept = [x]
        for part in self.down:
            x = part(x, time) if isinstance(part, Stage) else part(x)
            kept.append(x)
        for part in self.middle:
            x = part(x, time)
        for part in self.up:
            x = part(torch.cat([x, kept.pop()], dim=1), time) if isinstance(part, Stage) else part(x)
        return self.leave(F.silu(self.norm(x)))  # type: ignore[no-any-return]


def norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(GROUPS, width, eps=1e-3)  # Keras's default


def embedded(timesteps: Tensor) -> Tensor:
    """Sines and cosines. The frequencies are the training's; those in the file are rounded to 8 bits like weights."""
    half = TIME // 2
    steps = torch.arange(half, dtype=torch.float32, device=timesteps.device)
    phase = timesteps.float()[:, None] * torch.exp(steps * (-math.log(10000) / (half - 1)))
    return torch.cat([phase.sin(), phase.cos()], dim=-1)


def renamed(module: nn.Module, tensors: dict[str, np.ndarray]) -> dict[str, Tensor]:  # type: ignore[type-arg]
    """The file's tensors under the module's names. Each layer takes the number that comes next in its kind."""
    left = {name.removeprefix(PREFIX): value for name, value in tensors.items() if is_weight(name)}
    numbers: dict[str, Iterator[int]] = {kind: count(first) for kind, first in FIRST.items()}
    found = {}
    inside = ""  # of the attention block whose layers follow
    for name, layer in module.named_modules():
        if isinstance(layer, Attention):
            inside = f"attention_block_{next(numbers['attention_block'])}/"
            continue
        where = inside if ".attention." in name else ""
        for key, theirs in names(layer, numbers).items():
            path = where + (theirs.replace("MatMul", "Tensordot") if where else theirs)
            if path not in left:
                raise UsageError(f"The file holds no {path}, which would be {name}.{key}.")
            value = torch.from_numpy(np.array(left.pop(path)))
            if key == "weight" and value.ndim == 4:
                value = value.permute(3, 2, 0, 1)  # height, width, in, out
            elif key == "weight" and value.ndim == 2:
                value = value.T  # in, out
            expected = layer.get_parameter(key).shape
            if value.shape != expected:
                raise UsageError(f"{path} has shape {tuple(value.shape)}; {name}.{key} has {tuple(expected)}.")
            found[f"{name}.{key}"] = value.contiguous()
    if left:
        raise UsageError(f"No layer takes {', '.join(sorted(left))}.")
    return found


def is_weight(name: str) -> bool:
    return name.endswith("/ReadVariableOp")  # the rest are shapes, axes, epsilons and the frequencies of the time


def names(layer: nn.Module, numbers: dict[str, Iterator[int]]) -> dict[str, str]:
    """What Keras calls the tensors of the next layer of this kind."""
    if isinstance(layer, nn.Conv2d):
        own = f"conv2d_{next(numbers['conv2d'])}"
        return {"weight": f"{own}/Conv2D/ReadVariableOp", "bias": f"{own}/BiasAdd/ReadVariableOp"}
    if isinstance(layer, nn.Linear):
        own = f"dense_{next(numbers['dense'])}"
        return {"weight": f"{own}/MatMul/ReadVariableOp", "bias": f"{own}/BiasAdd/ReadVariableOp"}
    if isinstance(layer, nn.GroupNorm):
        own = f"group_normalization_{next(numbers['group_normalization'])}"
        return {"weight": f"{own}/Reshape_1/ReadVariableOp", "bias": f"{own}/Reshape_2/ReadVariableOp"}
    return {}


def load(folder: Path) -> Case:
    module = FacesUNet()
    module.load_state_dict(renamed(module, read_tensors(folder)))
    module.eval().requires_grad_(False)
    return Case(
        "faces",
        "a U-Net with attention that draws anime faces of 64×64 pixels",
        "wangjia184/diffusion_model (MIT)",
        module,
        (3, 64, 64),
        cosine_betas(LEVELS),
        clipped=True,
    )
