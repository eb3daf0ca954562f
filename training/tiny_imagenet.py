"""Tiny-ImageNet as files small enough to travel: packed from the git repository that carries it, read as tensors.

All of its JPEG files share two headers, one for colour pictures and one for grey ones. A shard stores the headers once
and, of each picture, only the bytes after the header: a third less, and every original file can be put together again.
The training pictures are shuffled before they are packed, so that any few shards are a fair sample of all classes.

    git clone --bare https://github.com/rangeetpan/IMagenet
    python -m training.tiny_imagenet --source IMagenet.git --out data/tiny
"""

import io
import os
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import read_json, replacing, write_json

SOURCE = "github.com/rangeetpan/IMagenet, folder tiny-imagenet-200 (Tiny-ImageNet, Stanford CS231n, from ImageNet)"
FOLDER = "tiny-imagenet-200"
SIZE = 64
VALIDATION = 10_000  # pictures of the original validation split
SHARDS = 11  # of training pictures, about 12 MB each; a twelfth holds the pictures of the validation split
START_OF_SCAN = b"\xff\xda"
DEFAULT_PATH = Path("data/tiny")
SHUFFLE_SEED = 0

Bytes = NDArray[np.uint8]


class TinyImageNet(NamedTuple):
    """Pictures uint8 [N, 3, 64, 64] and labels [N] for training, the same for what is held out, and the class names."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    names: list[str]


def scaled(images: Tensor) -> Tensor:
    """uint8 -> float32 in [-1, 1]."""
    return images.float() / 127.5 - 1


# --- packing -----------------------------------------------------------------------------------------------------


class Repository:
    """The files of a bare git repository at its newest commit."""

    def __init__(self, path: Path) -> None:
        self.git = ["git", f"--git-dir={path}"]

    def text(self, name: str) -> str:
        try:
            command = [*self.git, "cat-file", "-p", f"HEAD:{FOLDER}/{name}"]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except subprocess.CalledProcessError as error:
            raise UsageError(f"{self.git[1]} has no file {FOLDER}/{name}.") from error

    def objects(self, under: str) -> dict[str, str]:
        """The object's name of every JPEG file in a folder, by path."""
        command = [*self.git, "ls-tree", "-r", "HEAD", f"{FOLDER}/{under}/"]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        rows = (line.split("\t") for line in listing if line.endswith(".JPEG"))
        return {path.removeprefix(f"{FOLDER}/"): entry.split()[2] for entry, path in rows}

    def contents(self, objects: Sequence[str]) -> Iterator[bytes]:
        with subprocess.Popen([*self.git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as git:
            assert git.stdin is not None and git.stdout is not None
            for name in objects:
                git.stdin.write(f"{name}\n".encode())
                git.stdin.flush()
                size = int(git.stdout.readline().split()[2])
                yield git.stdout.read(size)
                git.stdout.read(1)
            git.stdin.close()


def listing(repository: Repository) -> tuple[list[str], list[tuple[str, int]], list[tuple[str, int]]]:
    """The readable class names, and (object, label) of the training pictures and of the validation pictures.

    The repository adds two classes of its own to Tiny-ImageNet's 200, and appends their validation pictures to the
    original 10,000. The classes here are those of the original pictures.
    """
    lines = repository.text("val/val_annotations.txt").splitlines()
    annotated = [(name, wnid) for name, wnid in (line.split("\t")[:2] for line in lines) if _number(name) < VALIDATION]
    classes = sorted({wnid for _, wnid in annotated})
    label = {wnid: i for i, wnid in enumerate(classes)}
    words = dict(line.split("\t") for line in repository.text("words.txt").splitlines())
    train = repository.objects("train")
    training = [(train[path], label[wnid]) for path in sorted(train) if (wnid := path.split("/")[1]) in label]
    held_out = repository.objects("val")
    validation = [(held_out[f"val/images/{name}"], label[wnid]) for name, wnid in annotated]
    return [words[wnid].split(",")[0] for wnid in classes], training, validation


def _number(name: str) -> int:
    """76 of val_76.JPEG."""
    return int(name.removeprefix("val_").removesuffix(".JPEG"))


def pack(files: Sequence[bytes], labels: Sequence[int]) -> dict[str, NDArray[Any]]:
    """JPEG files as arrays: the distinct headers, and each file's header number, rest and label."""
    cuts = [file.index(START_OF_SCAN) for file in files]
    headers = sorted({file[:cut] for file, cut in zip(files, cuts, strict=True)})
    number = {header: i for i, header in enumerate(headers)}
    rests = [file[cut:] for file, cut in zip(files, cuts, strict=True)]
    return {
        "headers": np.frombuffer(b"".join(headers), np.uint8),
        "header_ends": np.cumsum([len(header) for header in headers]),
        "header": np.array([number[file[:cut]] for file, cut in zip(files, cuts, strict=True)], np.uint8),
        "rests": np.frombuffer(b"".join(rests), np.uint8),
        "ends": np.cumsum([len(rest) for rest in rests]),
        "labels": np.array(labels, np.uint8),
    }


def unpack(arrays: dict[str, NDArray[Any]]) -> list[bytes]:
    """The JPEG files that `pack` was given, byte for byte."""
    headers = [part.tobytes() for part in np.split(arrays["headers"], arrays["header_ends"][:-1])]
    rests, starts = arrays["rests"].tobytes(), [0, *arrays["ends"][:-1]]
    return [
        headers[header] + rests[start:end]
        for header, start, end in zip(arrays["header"], starts, arrays["ends"], strict=True)
    ]


def write_shards(source: Path, out: Path, shards: int = SHARDS, limit: int | None = None) -> None:
    """train-00.npz and so on, validation.npz and classes.json; `limit` keeps only so many pictures of each split."""
    repository = Repository(source)
    names, training, validation = listing(repository)
    order = np.random.default_rng(SHUFFLE_SEED).permutation(len(training))[:limit]
    parts = {f"train-{i:02}": [training[j] for j in part] for i, part in enumerate(np.array_split(order, shards))}
    parts["validation"] = validation[:limit]
    write_json(out / "classes.json", {"names": names, "train": len(order), "test": len(parts["validation"])})
    for name, rows in parts.items():
        arrays: dict[str, Any] = pack(list(repository.contents([row[0] for row in rows])), [row[1] for row in rows])
        with replacing(out / f"{name}.npz") as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
        print(f"{name}: {len(rows):,} pictures, {(out / f'{name}.npz').stat().st_size / 1e6:.1f} MB", flush=True)


# --- reading -----------------------------------------------------------------------------------------------------


def _decode_files(files: list[bytes]) -> Bytes:
    """uint8 [N, 3, 64, 64]; a grey picture gets three equal channels."""
    pictures = [np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files]
    return np.stack(pictures).transpose(0, 3, 1, 2)


def decode(path: Path, processes: int) -> tuple[Bytes, NDArray[np.uint8]]:
    """The pictures and labels of one shard. They are kept beside it as .npy files, and read from there next time."""
    kept, kept_labels = path.with_suffix(".pictures.npy"), path.with_suffix(".labels.npy")
    if not (kept.exists() and kept_labels.exists()):
        with np.load(path) as arrays:
            files, labels = unpack(dict(arrays)), arrays["labels"]
        chunks = [files[start : start + 500] for start in range(0, len(files), 500)]
        if processes > 1:
            with ProcessPoolExecutor(processes, get_context("fork")) as pool:
                pictures = np.concatenate(list(pool.map(_decode_files, chunks)))
        else:
            pictures = np.concatenate([_decode_files(chunk) for chunk in chunks])
        for place, array in ((kept, pictures), (kept_labels, labels)):
            with replacing(place) as temporary, temporary.open("wb") as file:
                np.save(file, np.ascontiguousarray(array))
    return np.load(kept), np.load(kept_labels)


def load(folder: Path, processes: int | None = None) -> TinyImageNet:
    """The pictures of all shards in a folder; of the training split, as many shards as there are."""
    shards = sorted(folder.glob("train-*.npz"))
    held_out = folder / "validation.npz"
    if not shards or not held_out.exists():
        raise UsageError(
            f"There is no Tiny-ImageNet in {folder}; make it with python -m training.tiny_imagenet (--help says how)."
        )
    count = processes or len(os.sched_getaffinity(0))
    decoded = [decode(path, count) for path in [*shards, held_out]]
    images, labels = [torch.from_numpy(i) for i, _ in decoded], [torch.from_numpy(y).long() for _, y in decoded]
    names = read_json(folder / "classes.json", "list of classes")["names"]
    return TinyImageNet(torch.cat(images[:-1]), torch.cat(labels[:-1]), images[-1], labels[-1], names)


def main(
    source: Annotated[Path, typer.Option(help="A bare clone of the repository that carries the pictures.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")] = DEFAULT_PATH,
    shards: Annotated[int, typer.Option(min=1, help="Files of training pictures.")] = SHARDS,
    limit: Annotated[int | None, typer.Option(min=1, help="Pictures of each split; all if not given.")] = None,
) -> None:
    """Make the Tiny-ImageNet files that the training commands read."""
    write_shards(source, out, shards, limit)


if __name__ == "__main__":
    run(main)
