"""Trains the Fashion-MNIST classifier that judges samples, and writes it with its model card.

Plain supervised learning with mirrored and shifted images; the accuracy it reports is on held-out real ones.
"""

from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from scripts.command_line import run
from tenuto_lab.judging.classifier import FEATURES, Classifier
from training.fashion_mnist import DEFAULT_PATH, HELD_OUT, LABELS, PACKAGE, SIZE, FashionMnist, load
from training.judge import accuracy, fit, train_and_save
from training.loop import Device, Out, Seed, default_device

SHIFT = 2  # pixels, at most, in each direction


def augment(x: Tensor) -> Tensor:
    """Mirrors half of the images and shifts each by its own few pixels."""
    count, device = len(x), x.device
    mirrored = torch.rand(count, 1, 1, 1, device=device) < 0.5
    x = F.pad(torch.where(mirrored, x.flip(-1), x), (SHIFT,) * 4, value=-1.0)
    shifts = torch.randint(2 * SHIFT + 1, (2, count, 1), device=device)
    rows, columns = shifts + torch.arange(SIZE, device=device)  # each [B, 32]
    images = torch.arange(count, device=device)[:, None, None]
    return x[images, 0, rows[:, :, None], columns[:, None, :]][:, None]


def train_classifier(data: FashionMnist, epochs: int, device: torch.device) -> tuple[Classifier, float]:
    """The classifier, and its accuracy on what was held out."""
    classifier = Classifier().to(device)
    images, labels = data.train_images.to(device), data.train_labels.to(device)

    def held_out() -> float:
        return accuracy(classifier, data.test_images, data.test_labels)

    fit(classifier, lambda chosen: (augment(images[chosen]), labels[chosen]), len(images), held_out, epochs, rate=4e-3)
    return classifier, held_out()


def describe(parameters: int, held_out: float) -> tuple[str, str, str]:
    return (
        f"""# Fashion-MNIST classifier

A plain convolutional network ({parameters:,} parameters) that tells which of ten kinds of clothing a
{SIZE}×{SIZE} image shows. It judges whether generated samples are of the class that was asked for; its
{FEATURES}-wide penultimate features serve for Fréchet distances. It is a measuring instrument, not a product.

Held-out accuracy: **{held_out:.2%}** on {HELD_OUT * len(LABELS):,} real images.
""",
        f"npm `{PACKAGE}` (Fashion-MNIST, Zalando Research, MIT); the last {HELD_OUT:,} of each class held out",
        """Images are padded from 28×28 with black and scaled to [-1, 1]. The package does not mark Zalando's test
split, so the held-out images are others, and the accuracy is not comparable with published ones to the last digit.
""",
    )


def main(
    out: Out,
    data: Annotated[Path, typer.Option(help="The file made by training.fashion_mnist.")] = DEFAULT_PATH,
    epochs: Annotated[int, typer.Option(min=1)] = 30,
    device: Device = default_device(),
    seed: Seed = 0,
) -> None:
    """Train the classifier that judges samples."""
    images = load(data)
    train_and_save(
        out,
        lambda: train_classifier(images, epochs, torch.device(device)),
        kind="classifier",
        labels=LABELS,
        epochs=epochs,
        seed=seed,
        describe=describe,
    )


if __name__ == "__main__":
    run(main)
