"""Trains a small DiT on Fashion-MNIST for a given time, and writes it as a checkpoint the package reads."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import read_json, write_json
from tenuto.models.dit import ARCHITECTURE, DiT, DiTConfig
from training.ddim import Draw, chance, noise_loss, noised_batches
from training.fashion_mnist import DEFAULT_PATH, HELD_OUT, LABELS, PACKAGE, SIZE, FashionMnist, load
from training.loop import (
    Batch,
    Compile,
    Config,
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

SHIPPED = DiTConfig(
    input_size=SIZE,
    patch_size=4,  # 64 tokens: two CPU cores draw a picture in seconds
    in_channels=1,
    hidden_size=256,
    depth=12,
    num_heads=4,
    mlp_ratio=4.0,
    class_dropout_prob=0.1,
    num_classes=len(LABELS),
    learn_sigma=False,
)
SHOES = [LABELS.index(name) for name in ("Sandal", "Sneaker", "Ankle boot")]


def parse_config(given: str | None) -> DiTConfig:
    """A config from a JSON file or from JSON itself; a checkpoint's own config.json will do."""
    if given is None:
        return SHIPPED
    try:
        values = json.loads(given) if given.lstrip().startswith("{") else read_json(Path(given), "DiT config")
        config = DiTConfig(**{key: value for key, value in values.items() if key not in ("model_type", "labels")})
    except (json.JSONDecodeError, TypeError) as error:
        raise UsageError(f"The config is not a DiT's: {error}.") from error
    if (config.input_size, config.in_channels, config.num_classes) != (SIZE, 1, len(LABELS)):
        raise UsageError(f"Fashion-MNIST needs input_size {SIZE}, in_channels 1 and num_classes {len(LABELS)}.")
    if config.learn_sigma:
        raise UsageError("The objective here has no term for a learned variance: set learn_sigma to false.")
    return config


def mirrored(x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """Half of the pictures mirrored, but no shoes: all shoes in the data point left, and a model should know it."""
    mirrorable = ~torch.isin(y, torch.tensor(SHOES, device=y.device))
    return torch.where((chance(0.5, x, generator) & mirrorable)[:, None, None, None], x.flip(-1), x)


def pictures(data: FashionMnist, config: DiTConfig, size: int, device: torch.device) -> Draw:
    images, labels = data.train_images.to(device), data.train_labels.to(device)

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(images), (size,), generator=generator, device=device)
        x, y = images[chosen], labels[chosen]
        x = mirrored(x, y, generator)
        if config.class_dropout_prob > 0:
            y = y.masked_fill(chance(config.class_dropout_prob, y, generator), config.null_class)
        return x, y

    return draw


def train_dit(data: FashionMnist, config: DiTConfig, settings: Settings, device: torch.device) -> Trained:
    torch.manual_seed(settings.seed)
    network = DiT(config)
    network.initialize_weights()
    assert ARCHITECTURE.noise is not None
    draw = pictures(data, config, settings.batch, device)
    stream = noised_batches(draw, ARCHITECTURE.noise, settings.seed, device)
    return train(network.to(device), noise_loss(stream), settings)


def save(out: Path, trained: Trained, config: DiTConfig, settings: Settings) -> None:
    write_json(out / "config.json", {"model_type": "dit", **asdict(config), "labels": LABELS})
    save_weights(out, trained.state)
    held_out = f"less {HELD_OUT:,} held out of each class"
    save_record(out, trained, settings, f"npm {PACKAGE} (Fashion-MNIST, Zalando Research, MIT), {held_out}")


def main(
    out: Out,
    seconds: Seconds,
    data: Annotated[Path, typer.Option(help="The file made by training.fashion_mnist.")] = DEFAULT_PATH,
    config: Config = None,
    batch: Batch = 512,
    lr: Rate = 1e-3,
    ema: Ema = 0.9995,
    device: Device = default_device(),
    seed: Seed = 0,
    compile: Compile = True,
    max_steps: MaxSteps = None,
) -> None:
    """Train a DiT on Fashion-MNIST. Ctrl-C ends the training early and saves what it has."""
    dit, settings = parse_config(config), Settings(seconds, batch, lr, ema, seed, compile, max_steps)
    save(out, train_dit(load(data), dit, settings, torch.device(device)), dit, settings)


if __name__ == "__main__":
    run(main)
