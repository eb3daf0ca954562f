"""The quality of a set of pictures against a reference: Fréchet distance, inception score, precision, recall, CLIP.

A number means something only together with its conditions. So the report contains them: the reference, the features,
the number of samples, and the set's manifest, which says how the samples were made.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tenuto.errors import TenutoError, UsageError
from tenuto.files import check_regular
from tenuto.provenance import provenance
from tenuto_lab.full_size.clip import clip_scores
from tenuto_lab.full_size.inception import load_inception
from tenuto_lab.full_size.metrics import SPLITS, inception_score, precision_recall
from tenuto_lab.full_size.samples import MANIFEST, SET, Pixels, caption_of, read_manifest
from tenuto_lab.judging.judges import PictureJudge, judge_of, resamples_for
from tenuto_lab.judging.statistics import Distance, Statistics, frechet, mean_interval

FILES = (".png", ".jpg", ".jpeg")
Kind = Literal["inception", "own"]


@dataclass(frozen=True)
class PictureSet:
    name: str
    pixels: Pixels
    manifest: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Reference:
    """Pictures, the statistics of their features, or both, as in published reference batches."""

    name: str
    pixels: Pixels | None = None
    statistics: Statistics | None = None
    spatial: Statistics | None = None
    count: int | None = None  # number of reference pictures, if known


@dataclass(frozen=True)
class SeenSet:
    """The outputs of a network for a set of pictures."""

    features: Tensor  # [N, D]
    logits: Tensor  # [N, K]
    spatial: Tensor | None = None  # [N, S], only from Inception


class Viewer:
    """Turns pictures into features, batch by batch."""

    def __init__(self, name: str, see: Callable[[Tensor], tuple[Tensor, ...]], batch: int) -> None:
        self.name, self._see, self._batch = name, see, batch

    @torch.no_grad()
    def __call__(self, pixels: Pixels) -> SeenSet:
        parts = [self._see(part) for part in self._parts(pixels)]
        return SeenSet(*(torch.cat([part[i].cpu() for part in parts]) for i in range(len(parts[0]))))

    def _parts(self, pixels: Pixels) -> Iterator[Tensor]:
        for start in range(0, len(pixels), self._batch):
            yield torch.from_numpy(np.ascontiguousarray(pixels[start : start + self._batch])).permute(0, 3, 1, 2)


def evaluate_pictures(
    samples: Path,
    reference: Path | None,
    *,
    features: Kind = "inception",
    inception: Path | None = None,
    clip: Path | None = None,
    device: str = "cpu",
    batch: int = 64,
    against_set: Path | None = None,
) -> dict[str, Any]:
    """Every figure that the reference allows, and the conditions of the measurement.

    against_set  a second set from the same noise; the paired difference of the two Fréchet distances is told as well
    """
    drawn = read_set(samples)
    other = None if against_set is None else paired_set(drawn, against_set)
    if clip is not None and not (drawn.manifest or {}).get("provenance", {}).get("captions"):
        raise UsageError(f"CLIP scores need captions, and {samples} has no manifest that names them.")
    viewer, known = viewer_for(features, drawn.pixels.shape, inception, device, batch)
    compared = known if reference is None else read_reference(reference)
    if compared is None:
        raise UsageError("Name what the pictures are compared with: --reference (pictures, or their statistics).")
    seen = viewer(drawn.pixels)
    figures: dict[str, Any] = {"inception_score": None, **against(seen, compared, viewer, device)}
    if other is not None:
        figures["fid_delta"] = difference(seen, viewer(other.pixels), compared, viewer, device)
    if len(seen.logits) >= SPLITS:
        figures["inception_score"] = inception_score(seen.logits)
    if clip is not None:
        assert drawn.manifest is not None
        captions = drawn.manifest["provenance"]["captions"]
        said = [caption_of(captions, i) for i in range(len(drawn.pixels))]
        figures["clip_score"] = mean_interval(clip_scores(drawn.pixels, said, clip, device))
    return {
        "samples": {"name": drawn.name, "count": len(drawn.pixels), "manifest": drawn.manifest},
        "reference": {"name": compared.name, "count": compared.count},
        **({} if other is None else {"against": {"name": other.name, "manifest": other.manifest}}),
        "features": viewer.name,
        "figures": figures,
        "provenance": provenance(device),
    }


SAME = ("seed", "samples", "captions", "batch", "steps")  # settings that two paired sets share


def paired_set(drawn: PictureSet, path: Path) -> PictureSet:
    """The other set, if picture i of both sets comes from the same noise and the same request."""
    other = read_set(path)
    if drawn.pixels.shape != other.pixels.shape:
        raise UsageError(f"{drawn.name} and {other.name} hold {len(drawn.pixels)} and {len(other.pixels)} pictures, or "
                         "pictures of other sizes: they make no pairs.")  # fmt: skip
    if drawn.manifest is None or other.manifest is None:
        raise UsageError("Only sets with a manifest can be paired: it says which noise they come from.")
    mine, theirs = drawn.manifest["settings"], other.manifest["settings"]
    if differ := [name for name in SAME if mine.get(name) != theirs.get(name)]:
        raise UsageError(f"{drawn.name} and {other.name} differ in {', '.join(differ)}, so they make no pairs.")
    return other


def difference(seen: SeenSet, other: SeenSet, reference: Reference, viewer: Viewer, device: str) -> list[float]:
    """FID(samples) − FID(the other set), with its 95 % interval: both are resampled with the same indices."""
    statistics = reference.statistics
    if statistics is None:
        assert reference.pixels is not None
        statistics = Statistics.of(viewer(reference.pixels).features)
    many = resamples_for(len(statistics.mean))
    first, second = (Distance.of(one.features.to(device), statistics, many) for one in (seen, other))
    return list(first.beyond(second))


def against(seen: SeenSet, reference: Reference, viewer: Viewer, device: str) -> dict[str, Any]:
    """The figures that need the reference; None if the reference lacks the data for a figure."""
    real = None if reference.pixels is None else viewer(reference.pixels)
    statistics = reference.statistics or (None if real is None else Statistics.of(real.features))
    spatial = reference.spatial
    if spatial is None and real is not None and real.spatial is not None:
        spatial = Statistics.of(real.spatial)
    if statistics is None:
        raise UsageError(f"{reference.name} holds neither pictures nor statistics of them.")
    if len(statistics.mean) != seen.features.shape[1]:
        raise UsageError(
            f"The statistics of {reference.name} are of {len(statistics.mean)} features, and {viewer.name} are "
            f"{seen.features.shape[1]}: they are of another network."
        )
    found: dict[str, Any] = {"fid": Distance.of(seen.features.to(device), statistics).interval, "sfid": None}
    if spatial is not None and seen.spatial is not None:
        found["sfid"] = frechet(Statistics.of(seen.spatial.to(device)), spatial)
    pair = (None, None) if real is None else precision_recall(seen.features.to(device), real.features.to(device))
    return {**found, "precision": pair[0], "recall": pair[1]}


def viewer_for(
    kind: Kind, shape: tuple[int, ...], inception: Path | None, device: str, batch: int
) -> tuple[Viewer, Reference | None]:
    """The viewer for pictures of a shape [N, H, W, C], and the reference that is shipped with it, if any."""
    if kind == "own":
        if inception is not None:
            raise UsageError("--inception names the weights of other features: take --features inception.")
        judge = judge_of((shape[3], *shape[1:3]), device)
        if judge is None:
            raise UsageError(
                f"No classifier is shipped for pictures of {shape[1]}×{shape[2]} and {shape[3]} channel(s); "
                "take --features inception."
            )
        known = (
            None
            if judge.statistics is None
            else Reference(f"held-out pictures, in {judge.name}", None, judge.statistics)
        )
        return Viewer(judge.name, lambda pixels: _judged(judge, pixels), batch), known
    network = load_inception(inception, device)
    return Viewer(network.name, lambda pixels: network(_coloured(pixels).to(device)), batch), None


def _judged(judge: PictureJudge, pixels: Tensor) -> tuple[Tensor, Tensor]:
    features = judge.features(pixels.float() / 127.5 - 1)
    return features, judge.module.head(features)


def _coloured(pixels: Tensor) -> Tensor:
    return pixels.expand(-1, 3, -1, -1) if pixels.shape[1] == 1 else pixels


def read_set(path: Path) -> PictureSet:
    """The pictures in an npz file (its array `arr_0`), in a job's directory, or in a directory of picture files."""
    if path.is_dir():
        if (path / SET).exists():
            beside = path / MANIFEST
            manifest = read_manifest(beside) if beside.exists() else None
            return PictureSet(str(path), _pixels(_arrays(path / SET), path / SET), manifest)
        return PictureSet(str(path), _read_files(path))
    return PictureSet(str(path), _pixels(_arrays(path), path))


def read_reference(path: Path) -> Reference:
    """Pictures as in `read_set`, or statistics: our safetensors file, or an npz file with mu and sigma."""
    if path.suffix == ".safetensors":
        return Reference(str(path), statistics=Statistics.load(path))
    if path.is_dir():
        drawn = read_set(path)
        return Reference(drawn.name, drawn.pixels, count=len(drawn.pixels))
    arrays = _arrays(path)
    pixels = _pixels(arrays, path) if "arr_0" in arrays else None
    own = None if pixels is None else len(pixels)
    statistics = _gaussian(arrays, "mu", "sigma", path)
    count = own if statistics is None else None  # published statistics cover more pictures than the file holds
    return Reference(str(path), pixels, statistics, _gaussian(arrays, "mu_s", "sigma_s", path), count)


def _gaussian(arrays: Mapping[str, NDArray[Any]], mean: str, covariance: str, path: Path) -> Statistics | None:
    if mean not in arrays:
        return None
    try:
        return Statistics(torch.from_numpy(arrays[mean]).double(), torch.from_numpy(arrays[covariance]).double())
    except (KeyError, TypeError, ValueError) as error:
        raise TenutoError(f"{path} does not hold statistics: {error}.") from error


def _arrays(path: Path) -> Mapping[str, NDArray[Any]]:
    check_regular(path, "arrays")
    try:
        loaded = np.load(path, allow_pickle=False)
        return loaded if isinstance(loaded, np.lib.npyio.NpzFile) else {"arr_0": loaded}
    except OSError as error:
        raise TenutoError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, BadZipFile) as error:
        raise TenutoError(f"{path} holds no arrays: {error}.") from error


def _pixels(arrays: Mapping[str, NDArray[Any]], path: Path) -> Pixels:
    found: NDArray[Any] = arrays["arr_0"] if "arr_0" in arrays else np.empty(0)
    if found.dtype != np.uint8 or found.ndim != 4 or found.shape[3] not in (1, 3):
        raise TenutoError(
            f"{path} holds no pictures: `arr_0` should be bytes [N, H, W, 1 or 3], "
            f"not {found.dtype} {list(found.shape)}."
        )
    return found


def _read_files(directory: Path) -> Pixels:
    paths = sorted(path for path in directory.iterdir() if path.suffix.lower() in FILES)
    if not paths:
        raise TenutoError(f"{directory} holds neither {SET} nor pictures ({', '.join(FILES)}).")
    pictures = [_read_file(path) for path in paths]
    for path, picture in zip(paths, pictures, strict=True):
        if picture.shape != pictures[0].shape:
            raise TenutoError(f"{path} is {list(picture.shape)}, and {paths[0]} is {list(pictures[0].shape)}.")
    return np.stack(pictures)


def _read_file(path: Path) -> Pixels:
    with Image.open(path) as picture:
        grey = picture.mode in ("L", "1")
        array = np.asarray(picture.convert("L" if grey else "RGB"))
    return array[:, :, None] if grey else array
