"""Trains the Tiny-ImageNet classifier that judges the family's samples, and writes it with its model card.

Plain supervised learning on mirrored, moved, resized and partly covered pictures; its accuracy is that on held-out
real ones. Beside it lie the statistics of its features of these pictures, for Fréchet distances.

    python -m training.train_tiny_classifier --out family/judge --seconds 40
"""

import json
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from safetensors.torch import save_file
from torch import Tensor, nn

from scripts.command_line import run
from tenuto.files import read_json, replacing, write_json, write_text
from tenuto.provenance import provenance
from tenuto_lab.judging.statistics import Statistics
from tenuto_lab.judging.tiny_classifier import FEATURES, TinyClassifier, load_tiny_classifier
from training.card import table, training_section
from training.judge import guesses
from training.loop import (
    Batch,
    Compile,
    Device,
    Ema,
    MaxSteps,
    Out,
    Rate,
    Seconds,
    Seed,
    Settings,
    Trained,
    default_device,
    save_record,
    train,
)
from training.tiny_imagenet import DEFAULT_PATH, SIZE, SOURCE, TinyImageNet, load, scaled

COVER = 20  # the side of the square that is covered
SMOOTHING = 0.1


def augment(x: Tensor) -> Tensor:
    """Mirrors half of the pictures, resizes and moves each, and covers a square of each with grey."""
    count, device = len(x), x.device
    scale = torch.empty(count, device=device).uniform_(0.65, 1.05)  # of the part that is shown
    mirror = torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    room = (1 - scale).abs()
    move = (2 * torch.rand(2, count, device=device) - 1) * room
    zero = torch.zeros_like(scale)
    rows = [torch.stack([scale * mirror, zero, move[0]], dim=1), torch.stack([zero, scale, move[1]], dim=1)]
    places = F.affine_grid(torch.stack(rows, dim=1), list(x.shape), align_corners=False)
    x = F.grid_sample(x, places, padding_mode="reflection", align_corners=False)
    corners = torch.randint(1 - COVER, SIZE, (2, count, 1), device=device)
    offset = torch.arange(SIZE, device=device) - corners
    down, across = (offset >= 0) & (offset < COVER)
    return x.masked_fill((down[:, :, None] & across[:, None, :])[:, None], 0.0)


def train_classifier(data: TinyImageNet, settings: Settings, device: torch.device) -> tuple[TinyClassifier, Trained]:
    torch.manual_seed(settings.seed)
    classifier = TinyClassifier(len(data.names)).to(device)
    classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images, labels = data.train_images.to(device), data.train_labels.to(device)

    def loss_of(forward: nn.Module) -> Tensor:
        chosen = torch.randint(len(images), (settings.batch,), device=device)
        with torch.autocast(device.type, enabled=False):
            x = augment(scaled(images[chosen])).contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(forward(x).float(), labels[chosen], label_smoothing=SMOOTHING)

    trained = train(classifier, loss_of, settings)
    classifier.load_state_dict(trained.state)
    settle(classifier, images, settings.batch)
    trained.state = classifier.state_dict()
    return classifier.eval(), trained


@torch.no_grad()
def settle(classifier: TinyClassifier, images: Tensor, batch: int, batches: int = 40) -> None:
    """Measures the batch norms' statistics again: those of the training belong to weights that were not averaged."""
    norms = [module for module in classifier.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean
    classifier.train()
    for _ in range(batches):
        chosen = torch.randint(len(images), (batch,), device=images.device)
        classifier(augment(scaled(images[chosen])).contiguous(memory_format=torch.channels_last))


@torch.no_grad()
def features(classifier: TinyClassifier, images: Tensor) -> Tensor:
    """[N, 224] on the CPU, of pictures in [-1, 1]."""
    device = next(classifier.parameters()).device
    return torch.cat([classifier.features(part.to(device)).cpu() for part in images.split(1000)])


def save(out: Path, classifier: TinyClassifier, trained: Trained, settings: Settings, data: TinyImageNet) -> None:
    with replacing(out / "model.safetensors") as temporary:
        state = {k: v.half() if v.is_floating_point() else v for k, v in trained.state.items()}
        save_file({key: value.cpu().contiguous() for key, value in state.items()}, temporary, {"format": "pt"})
    save_record(out, trained, settings, f"{SOURCE}; {len(data.train_images):,} training pictures")
    stored = load_tiny_classifier(out).to(next(classifier.parameters()).device)  # what is measured is what is stored
    real = scaled(data.test_images)
    accuracy = (guesses(stored, real) == data.test_labels).float().mean().item()
    made = provenance(seed=settings.seed)
    write_json(
        out / "config.json",
        {
            "model_type": "tiny_classifier",
            "labels": data.names,
            "held_out_accuracy": accuracy,
            "seconds": round(trained.seconds, 1),
            "provenance": made,
        },
    )
    notes = {**made, "pictures": len(real), "data": "Tiny-ImageNet, validation", "accuracy": accuracy}
    Statistics.of(features(stored, real)).save(out / "statistics.safetensors", {"provenance": json.dumps(notes)})
    write_text(out / "README.md", classifier_card(out, len(real), accuracy))
    print(f"held-out accuracy {accuracy:.2%}")


def classifier_card(directory: Path, count: int, accuracy: float) -> str:
    record = read_json(directory / "loss.json", "training record")
    rows = {"Accuracy": f"**{accuracy:.2%}** of {count:,} pictures of the validation split", "Licence": "Apache-2.0"}
    return f"""# Tiny-ImageNet classifier

A residual network of fourteen layers ({record["parameters"]:,} parameters) that tells which of 200 things a
{SIZE}×{SIZE} picture shows. It judges whether generated samples are of the class that was asked for; its
{FEATURES}-wide penultimate features serve for Fréchet distances. It is a measuring instrument, not a product.

{training_section(record, directory)}
## Held-out pictures

| | |
|---|---|
{table(rows)}

`statistics.safetensors` holds the mean and the covariance of its features of these pictures.
"""


def main(
    out: Out,
    seconds: Seconds,
    data: Annotated[Path, typer.Option(help="The folder made by training.tiny_imagenet.")] = DEFAULT_PATH,
    batch: Batch = 512,
    lr: Rate = 4e-3,
    ema: Ema = 0.998,
    device: Device = default_device(),
    seed: Seed = 0,
    compile: Compile = True,
    max_steps: MaxSteps = None,
) -> None:
    """Train the classifier that judges the family's samples."""
    settings = Settings(seconds, batch, lr, ema, seed, compile, max_steps, weight_decay=0.05)
    pictures = load(data)
    classifier, trained = train_classifier(pictures, settings, torch.device(device))
    save(out, classifier, trained, settings, pictures)


if __name__ == "__main__":
    run(main)
