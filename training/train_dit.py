"""Trains a small DiT on Fashion-MNIST for a given time, and writes it as a checkpoint the package reads."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from ddim import alphas_cumprod, noised
from fashion_mnist import DEFAULT_PATH, HELD_OUT, LABELS, PACKAGE, SIZE, FashionMnist, load
from loop import Settings, Trained, run, save_record, save_weights, train
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.files import read_json, write_json
from tenuto.models.dit import ARCHITECTURE, DiT, DiTConfig

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


def batches(
    data: FashionMnist, config: DiTConfig, size: int, seed: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(noised images, timesteps, labels, noise) without end, drawn on the device."""
    generator = torch.Generator(device).manual_seed(seed)
    images, labels = data.train_images.to(device), data.train_labels.to(device)
    assert ARCHITECTURE.noise is not None
    alphas = alphas_cumprod(ARCHITECTURE.noise).to(device)
    # All shoes in the data point left, and a model of the data should know it.
    mirrorable = torch.ones(len(LABELS), dtype=torch.bool)
    mirrorable[SHOES] = False
    mirrorable = mirrorable.to(device)

    def chance(probability: float) -> Tensor:
        return torch.rand(size, generator=generator, device=device) < probability

    while True:
        chosen = torch.randint(len(images), (size,), generator=generator, device=device)
        x, y = images[chosen], labels[chosen]
        x = torch.where((chance(0.5) & mirrorable[y])[:, None, None, None], x.flip(-1), x)
        if config.class_dropout_prob > 0:
            y = y.masked_fill(chance(config.class_dropout_prob), config.null_class)
        t = torch.randint(len(alphas), (size,), generator=generator, device=device)
        noise = torch.randn(x.shape, generator=generator, device=device)
        yield noised(x, noise, alphas[t]), t, y, noise


def train_dit(data: FashionMnist, config: DiTConfig, settings: Settings, device: torch.device) -> Trained:
    torch.manual_seed(settings.seed)
    network = DiT(config)
    network.initialize_weights()
    network = network.to(device)
    stream = batches(data, config, settings.batch, settings.seed, device)

    def loss_of(forward: Any) -> Tensor:
        x, t, y, noise = next(stream)
        return F.mse_loss(forward(x, t, y).float(), noise)

    return train(network, loss_of, settings)


def save(out: Path, trained: Trained, config: DiTConfig, settings: Settings) -> None:
    write_json(out / "config.json", {"model_type": "dit", **asdict(config), "labels": LABELS})
    save_weights(out, trained.state)
    held_out = f"less {HELD_OUT:,} held out of each class"
    save_record(out, trained, settings, f"npm {PACKAGE} (Fashion-MNIST, Zalando Research, MIT), {held_out}")


def main(
    out: Annotated[Path, typer.Option(help="The directory to write.")],
    seconds: Annotated[float, typer.Option(min=0.001, help="How long to train; compiling is not counted.")],
    data: Annotated[Path, typer.Option(help="The file made by fashion_mnist.py.")] = DEFAULT_PATH,
    config: Annotated[str | None, typer.Option(help="JSON, or a JSON file; the shipped model's if not given.")] = None,
    batch: Annotated[int, typer.Option(min=1)] = 512,
    lr: Annotated[float, typer.Option(help="The peak learning rate.")] = 1e-3,
    ema: Annotated[float, typer.Option(min=0, max=1, help="The decay of the weights' average.")] = 0.9995,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
    seed: Annotated[int, typer.Option()] = 0,
    compile: Annotated[bool, typer.Option()] = True,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many steps, if sooner.")] = None,
) -> None:
    """Train a DiT on Fashion-MNIST. Ctrl-C ends the training early and saves what it has."""
    torch.set_float32_matmul_precision("high")
    dit, place = parse_config(config), torch.device(device)
    settings = Settings(seconds, batch, lr, ema, seed, compile, max_steps)
    save(out, train_dit(load(data), dit, settings, place), dit, settings)


if __name__ == "__main__":
    run(main)
