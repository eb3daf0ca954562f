"""What the two classifiers that judge samples share: how they are trained, measured and written."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from tenuto.files import replacing, write_json, write_text
from tenuto.provenance import provenance
from training.card import table, versions

BATCH = 512


def fit(
    classifier: nn.Module,
    draw: Callable[[Tensor], tuple[Tensor, Tensor]],
    count: int,
    held_out: Callable[[], float],
    epochs: int,
    rate: float,
    smoothing: float = 0.0,
) -> None:
    """Train in place; `draw(indices)` gives augmented images and their labels, `held_out()` the accuracy so far."""
    device = next(classifier.parameters()).device
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=epochs * -(-count // BATCH), pct_start=0.2
    )
    for epoch in range(epochs):
        classifier.train()
        total = torch.zeros((), device=device)
        for chosen in torch.randperm(count, device=device).split(BATCH):
            images, labels = draw(chosen)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = classifier(images)
            loss = F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach() * len(chosen)
        print(f"epoch {epoch + 1}/{epochs}: loss {total.item() / count:.4f}, held-out accuracy {held_out():.2%}")
    classifier.eval()


@torch.no_grad()
def guesses(classifier: nn.Module, images: Tensor) -> Tensor:
    """The class it assigns to each image in [-1, 1]."""
    classifier.eval()
    device = next(classifier.parameters()).device
    return torch.cat([classifier(part.to(device)).argmax(1).cpu() for part in images.split(1000)])


def accuracy(classifier: nn.Module, images: Tensor, labels: Tensor) -> float:
    return (guesses(classifier, images) == labels.cpu()).float().mean().item()


def train_and_save(
    out: Path,
    train: Callable[[], tuple[nn.Module, float]],
    *,
    kind: str,
    labels: list[str],
    epochs: int,
    seed: int,
    describe: Callable[[int, float], tuple[str, str, str]],
) -> None:
    """Train, and write the weights with their card.

    train     gives the classifier and its held-out accuracy
    describe  (parameters, accuracy) -> the card's opening, its data row, and its closing
    """
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(seed)
    start = time.perf_counter()
    classifier, held_out = train()
    seconds, made = time.perf_counter() - start, provenance(seed=seed)
    with replacing(out / "model.safetensors") as temporary:
        state = {key: value.cpu().contiguous() for key, value in classifier.state_dict().items()}
        save_file(state, temporary, {"format": "pt"})
    record: dict[str, Any] = {"model_type": kind, "labels": labels, "held_out_accuracy": held_out, "epochs": epochs}
    write_json(out / "config.json", {**record, "seconds": round(seconds, 1), "provenance": made})
    opening, data, closing = describe(sum(parameter.numel() for parameter in classifier.parameters()), held_out)
    rows = {
        "Command": f"`{made['command']}`",
        "Data": data,
        "Training": f"{epochs} epochs in {seconds:.0f} s on {made['hardware']}",
        **versions(made),
        "Licence": "Apache-2.0",
    }
    write_text(out / "README.md", f"{opening}\n| | |\n|---|---|\n{table(rows)}\n\n{closing}")
    print(f"{out}: held-out accuracy {held_out:.2%} after {seconds:.0f} s")
