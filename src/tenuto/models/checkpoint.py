"""Files to tensors: open a checkpoint, list its keys and shapes, and read its tensors one at a time.

A checkpoint is a directory (`config.json` and safetensors, one file or many) or a bare `.safetensors` / `.pt` file.
A tensor may be stored in 8 bits, with a scale for each row in a second tensor (….weight and ….weight_scale).
"""

import hashlib
import pickle
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from tenuto.errors import CheckpointError, first_line
from tenuto.files import check_regular, read_json

DENOISERS = ("unet", "transformer")  # where a diffusers pipeline keeps its denoiser
PICKLES = (".pt", ".pth", ".bin", ".ckpt")
SCALE = "_scale"  # behind the name of a tensor in 8 bits: the factors of its rows
NESTS = ("ema", "state_dict", "model")  # where a pickled training state keeps the weights to sample with


class Tensors(Protocol):
    """Named tensors that can be read one at a time, from any source."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read(self, key: str) -> Tensor: ...


@dataclass(frozen=True)
class Checkpoint:
    """Tensors on disk."""

    path: Path
    config: dict[str, Any] | None  # the content of config.json, if there is one
    shapes: Mapping[str, tuple[int, ...]]  # in file order
    files: tuple[Path, ...]
    _readers: Mapping[str, Callable[[], Tensor]]

    def read(self, key: str) -> Tensor:
        return self._readers[key]()

    def files_seen(self) -> list[list[Any]]:
        """Name, size and time of each file. They show whether the checkpoint is the same as in an earlier run."""
        return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in self.files]

    def renamed(self, names: Mapping[str, str]) -> "Checkpoint":
        """The same checkpoint with new names; `names` maps new names to stored names. Other tensors are left out."""
        shapes = {name: self.shapes[stored] for name, stored in names.items()}
        readers = {name: self._readers[stored] for name, stored in names.items()}
        return replace(self, shapes=shapes, _readers=readers)


class ModuleTensors:
    """The tensors of a live module."""

    def __init__(self, module: nn.Module) -> None:
        self._state = module.state_dict()
        self.shapes: Mapping[str, tuple[int, ...]] = {key: tuple(value.shape) for key, value in self._state.items()}

    def read(self, key: str) -> Tensor:
        return self._state[key]


def config_of(path: Path) -> tuple[Path, dict[str, Any] | None]:
    """The checkpoint itself, which in a diffusers pipeline is its denoiser's, and its config.json if there is one."""
    if path.is_dir():
        for denoiser in DENOISERS:
            if not (path / "config.json").exists() and (path / denoiser / "config.json").exists():
                path = path / denoiser
        file = path / "config.json"
    elif path.exists():
        check_regular(path, "checkpoint")
        file = path.parent / "config.json"
    else:
        raise CheckpointError(f"There is no checkpoint at {path}.")
    return path, read_json(file, "model config") if file.exists() else None


def open_checkpoint(path: Path) -> Checkpoint:
    path, config = config_of(path)
    files = _safetensors_in(path) if path.is_dir() else [path]
    readers: dict[str, Callable[[], Tensor]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        if path.is_dir():
            _check_own(path, file)
        check_regular(file, "weights")
        for key, shape, reader in _open_pickle(file) if file.suffix in PICKLES else _open_safetensors(file):
            if key in shapes:
                raise CheckpointError(f"{path} stores the tensor {key} twice, the second time in {file.name}.")
            shapes[key], readers[key] = shape, reader
    for key in [key for key, shape in shapes.items() if shapes.get(f"{key}{SCALE}") == (*shape[:1], 1)]:
        del shapes[f"{key}{SCALE}"]
        readers[key] = partial(_scaled, readers[key], readers.pop(f"{key}{SCALE}"))
    return Checkpoint(path, config, shapes, tuple(files), readers)


def _scaled(values: Callable[[], Tensor], scales: Callable[[], Tensor]) -> Tensor:
    """A tensor that is stored in 8 bits, in its scales' precision."""
    factors = scales()
    return (values().float() * factors.float()).to(factors.dtype)


def check_shapes(path: Path, found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Check that every key and shape is what the architecture expects. The error counts and names what is wrong."""
    missing = [key for key in expected if key not in found]
    surplus = [key for key in found if key not in expected]
    misshapen = [
        f"{key} is {list(found[key])} but should be {list(expected[key])}"
        for key in expected
        if key in found and found[key] != expected[key]
    ]
    faults = [("is missing", missing), ("does not expect", surplus), ("has misshapen", misshapen)]
    sentences = [
        f"{verb} {len(culprits)} tensor(s): {', '.join(culprits[:3])}{', …' if len(culprits) > 3 else ''}"
        for verb, culprits in faults
        if culprits
    ]
    if any("lora" in key.lower() for key in surplus):
        sentences.append("finds LoRA matrices: merge them into the base model first")
    if sentences:
        raise CheckpointError(f"{path} does not fit its architecture. The model {'; it '.join(sentences)}.")


def digest(tensor: Tensor) -> str:
    """A digest of one tensor's shape and exact values; the same for a bfloat16 tensor and its float32 copy."""
    value = _narrowest(tensor.detach()).cpu().contiguous()
    sha = hashlib.sha256(f"{value.dtype} {list(value.shape)}".encode())
    sha.update(value.view(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def _narrowest(tensor: Tensor) -> Tensor:
    """The tensor in the narrowest precision that holds every value exactly."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        if tensor.dtype == dtype or (tensor.dtype.itemsize >= dtype.itemsize and torch.equal(tensor.to(dtype), tensor)):
            return tensor.to(dtype)
    return tensor


def fingerprint(digests: Mapping[str, str]) -> str:
    """One name for a set of weights, from the tensors' digests; the division into files does not matter."""
    lines = "\n".join(f"{key} {digests[key]}" for key in sorted(digests))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def fingerprint_of(tensors: Tensors, keys: Iterable[str]) -> str:
    return fingerprint({key: digest(tensors.read(key)) for key in keys})


def _safetensors_in(directory: Path) -> list[Path]:
    # Plain files before variants (….fp16…), which are the same weights in less precision.
    for index in sorted(directory.glob("*.safetensors.index*.json"), key=lambda file: (len(file.name), file)):
        names = read_json(index, "safetensors index").get("weight_map")
        if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
            raise CheckpointError(f'{index} has no "weight_map" that says which file holds which tensor.')
        return [_shard(directory, name, index) for name in dict.fromkeys(names.values())]
    if (directory / "diffusion_pytorch_model.safetensors").exists():
        return [directory / "diffusion_pytorch_model.safetensors"]
    files = sorted(directory.glob("*.safetensors"))
    if files:
        return files
    pickles = sorted(file for file in directory.iterdir() if file.suffix in PICKLES)
    if len(pickles) == 1:
        return pickles
    raise CheckpointError(
        f"{directory} holds no *.safetensors file" + (f" and {len(pickles)} pickles" * bool(pickles)) + "."
    )


def _shard(directory: Path, name: str, index: Path) -> Path:
    """A file that an index names. It must lie in the checkpoint's own folder or below it."""
    if Path(name).is_absolute() or ".." in Path(name).parts or "\\" in name:
        raise CheckpointError(f"{index} names {name!r}, which lies outside of the checkpoint's own folder.")
    file = directory / name
    try:
        there = file.exists()
    except (OSError, ValueError) as error:  # a name that no file can have
        raise CheckpointError(f"{index} names a file that cannot be opened: {name[:40]!r}….") from error
    if not there:
        raise CheckpointError(f"{index} names {name}, which is not there: the checkpoint is incomplete.")
    _check_own(directory, file)
    return file


def _check_own(directory: Path, file: Path) -> None:
    """Refuse a link out of the checkpoint's folder, except to the blobs of the hub's cache, which links every file."""
    root, target = directory.resolve(), file.resolve()
    blobs = [folder / "blobs" for folder in root.parents if (folder / "snapshots").is_dir()]
    if not any(target.is_relative_to(place) for place in (root, *blobs)):
        raise CheckpointError(f"{file} is a link to {target}, outside of the checkpoint's own folder.")


def _open_safetensors(file: Path) -> list[tuple[str, tuple[int, ...], Callable[[], Tensor]]]:
    def reader(key: str) -> Callable[[], Tensor]:
        def read() -> Tensor:
            # Open the file for each tensor, because an open mapping keeps in memory every page that was read.
            with safe_open(file, framework="pt") as handle:
                return handle.get_tensor(key)

        return read

    try:
        with safe_open(file, framework="pt") as handle:
            keys = handle.keys()
            return [(key, tuple(handle.get_slice(key).get_shape()), reader(key)) for key in keys]
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is not a readable safetensors file, or not whole: {error}.") from error


def _open_pickle(file: Path) -> list[tuple[str, tuple[int, ...], Callable[[], Tensor]]]:
    state: Any
    try:
        mappable = zipfile.is_zipfile(file)  # files from before torch 1.6 are not
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=mappable)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} is not a checkpoint of plain tensors that can be read safely, or not whole: {first_line(error)}"
        ) from error
    for nest in NESTS:
        if isinstance(state, dict) and isinstance(state.get(nest), dict):
            state = state[nest]
    if not isinstance(state, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()):
        raise CheckpointError(f"{file} does not hold a flat dictionary of tensors, nor one under {' / '.join(NESTS)}.")
    return [(key, tuple(value.shape), partial(torch.Tensor.detach, value)) for key, value in state.items()]
