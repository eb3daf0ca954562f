"""Measures what real pictures look like to the classifiers: the Gaussian that Fréchet distances are taken to.

The pictures are those held out from the classifier's training, so that none of them looks more familiar than samples.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from torch import Tensor

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.models import shipped
from tenuto.provenance import provenance
from tenuto_lab.judging.cifar_classifier import load_cifar_classifier
from tenuto_lab.judging.classifier import load_classifier
from tenuto_lab.judging.judges import PictureClassifier, PictureJudge
from tenuto_lab.judging.statistics import Statistics
from training import cifar10, fashion_mnist
from training.loop import Device, default_device

Kind = Literal["fashion-classifier", "cifar-classifier"]


def fashion_pictures(path: Path) -> tuple[Tensor, Tensor]:
    data = fashion_mnist.load(path)
    return data.test_images, data.test_labels


def cifar_pictures(path: Path) -> tuple[Tensor, Tensor]:
    data = cifar10.load(path)
    return cifar10.scaled(data.test_images), data.test_labels


# How the classifier is read, how the held-out pictures are, and where they lie.
KINDS: dict[str, tuple[Callable[[Path], PictureClassifier], Callable[[Path], tuple[Tensor, Tensor]], Path]] = {
    "fashion-classifier": (load_classifier, fashion_pictures, fashion_mnist.DEFAULT_PATH),
    "cifar-classifier": (load_cifar_classifier, cifar_pictures, cifar10.DEFAULT_PATH),
}


def measure(kind: str, directory: Path, data: Path, device: torch.device) -> tuple[Statistics, int, float]:
    """The statistics of the held-out pictures, how many they are, and the share that the classifier gets right."""
    load, pictures, _ = KINDS[kind]
    judge = PictureJudge(kind, load(directory).to(device))
    images, labels = pictures(data)
    return Statistics.of(judge.features(images)), len(images), judge.agrees(images, labels).float().mean().item()


def main(
    classifier: Annotated[Kind, typer.Option(help="Whose features.")],
    directory: Annotated[Path | None, typer.Option(help="Where it lies; the shipped one if not given.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The file made by training.fashion_mnist or training.cifar10.")
    ] = None,
    device: Device = default_device(),
) -> None:
    """Write statistics.safetensors beside a classifier: mean and covariance of its features of real pictures."""
    place, source = directory or shipped(classifier), data or KINDS[classifier][2]
    if not place.is_dir():
        raise UsageError(f"There is no classifier in {place}.")
    statistics, count, right = measure(classifier, place, source, torch.device(device))
    made = provenance(device, pictures=count, data=source.name, accuracy=right)
    statistics.save(place / "statistics.safetensors", {"provenance": json.dumps(made)})
    print(f"{place}: {len(statistics.mean)} features of {count:,} held-out pictures, {right:.2%} of them recognised")


if __name__ == "__main__":
    run(main)
