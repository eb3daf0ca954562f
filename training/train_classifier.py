"""Trains the Fashion-MNIST classifier that judges samples, and writes it with its model card.

Plain supervised learning with mirrored and shifted images; the accuracy it reports is on held-out real ones.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from fashion_mnist import DEFAULT_PATH, HELD_OUT, LABELS, PACKAGE, SIZE, FashionMnist, load
from loop import run
from safetensors.torch import save_file
from torch import Tensor

from tenuto.files import replacing, write_json, write_text
from tenuto.measure.classifier import FEATURES, Classifier
from tenuto.provenance import provenance

BATCH = 512
PEAK_RATE = 4e-3
SHIFT = 2  # pixels, at most, in each direction


def augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrors half of the images and shifts each by its own few pixels."""
    count, device = len(x), x.device
    mirrored = torch.rand(count, 1, 1, 1, generator=generator, device=device) < 0.5
    x = F.pad(torch.where(mirrored, x.flip(-1), x), (SHIFT,) * 4, value=-1.0)
    shifts = torch.randint(2 * SHIFT + 1, (2, count, 1), generator=generator, device=device)
    rows, columns = shifts + torch.arange(SIZE, device=device)  # each [B, 32]
    images = torch.arange(count, device=device)[:, None, None]
    return x[images, 0, rows[:, :, None], columns[:, None, :]][:, None]


def fit(data: FashionMnist, epochs: int, device: torch.device, seed: int) -> Classifier:
    torch.manual_seed(seed)
    classifier = Classifier().to(device)
    images, labels = data.train_images.to(device), data.train_labels.to(device)
    generator = torch.Generator(device).manual_seed(seed)
    steps = -(-len(images) // BATCH)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=PEAK_RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=epochs * steps, pct_start=0.2)
    for epoch in range(epochs):
        classifier.train()
        total = torch.zeros((), device=device)
        for chosen in torch.randperm(len(images), generator=generator, device=device).split(BATCH):
            loss = F.cross_entropy(classifier(augment(images[chosen], generator)), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach() * len(chosen)
        held_out = accuracy(classifier, data.test_images, data.test_labels)
        print(f"epoch {epoch + 1}/{epochs}: loss {total.item() / len(images):.4f}, held-out accuracy {held_out:.2%}")
    return classifier.eval()


@torch.no_grad()
def accuracy(classifier: Classifier, images: Tensor, labels: Tensor) -> float:
    classifier.eval()
    device = next(classifier.parameters()).device
    guesses = torch.cat([classifier(part.to(device)).argmax(1).cpu() for part in images.split(1000)])
    return (guesses == labels.cpu()).float().mean().item()


def model_card(made: dict[str, Any], parameters: int, held_out: float, epochs: int, seconds: float) -> str:
    return f"""# Fashion-MNIST classifier

A plain convolutional network ({parameters:,} parameters) that tells which of ten kinds of clothing a
{SIZE}×{SIZE} image shows. It judges whether generated samples are of the class that was asked for; its
{FEATURES}-wide penultimate features serve for Fréchet distances. It is a measuring instrument, not a product.

Held-out accuracy: **{held_out:.2%}** on {HELD_OUT * len(LABELS):,} real images.

| | |
|---|---|
| Made by | `{made["command"]}` |
| Data | npm `{PACKAGE}` (Fashion-MNIST, Zalando Research, MIT); the last {HELD_OUT:,} of each class held out |
| Training | {epochs} epochs in {seconds:.0f} s on {made["hardware"]} |
| Seed | {made["seed"]} |
| Versions | Python {made["python"]}, torch {made["torch"]} |
| Commit | {made["commit"]} |
| Licence | Apache-2.0 |

Images are padded from 28×28 with black and scaled to [-1, 1]. The package does not mark Zalando's test split,
so the held-out images are others, and the accuracy is not comparable with published ones to the last digit.
"""


def main(
    out: Annotated[Path, typer.Option(help="The directory to write.")],
    data: Annotated[Path, typer.Option(help="The file made by fashion_mnist.py.")] = DEFAULT_PATH,
    epochs: Annotated[int, typer.Option(min=1)] = 30,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Train the classifier that judges samples."""
    torch.set_float32_matmul_precision("high")
    images = load(data)
    start = time.perf_counter()
    classifier = fit(images, epochs, torch.device(device), seed)
    seconds = time.perf_counter() - start
    held_out = accuracy(classifier, images.test_images, images.test_labels)
    made = provenance(seed=seed)
    with replacing(out / "model.safetensors") as temporary:
        state = {key: value.cpu().contiguous() for key, value in classifier.state_dict().items()}
        save_file(state, temporary, {"format": "pt"})
    write_json(
        out / "config.json",
        {
            "model_type": "classifier",
            "input_size": SIZE,
            "features": FEATURES,
            "labels": LABELS,
            "held_out_accuracy": held_out,
            "epochs": epochs,
            "seconds": round(seconds, 1),
            "provenance": made,
        },
    )
    parameters = sum(parameter.numel() for parameter in classifier.parameters())
    write_text(out / "README.md", model_card(made, parameters, held_out, epochs, seconds))
    print(f"{out}: held-out accuracy {held_out:.2%} after {seconds:.0f} s")


if __name__ == "__main__":
    run(main)
