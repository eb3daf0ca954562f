"""Trains the small autoencoder of the Tiny-ImageNet family, and writes it as diffusers stores an AutoencoderKL.

Why latents at all: a picture of 64×64 becomes 16×16 latents, which are 64 tokens at patch 2. In pixels, patch 4 makes
256 tokens and patch 8 blurs. With 64 tokens the networks train four times as fast, and two CPU cores draw in seconds.

The loss is L1 + LPIPS / 2 + KL / 100, each a mean. The KL term is small. With it the posterior's noise has 0.15 times
the latents' deviation (measured on the autoencoder of weights/natural-dit). The decoder learns to cope with that noise,
and so it forgives small errors of the network that draws. There is no GAN.

    python -m training.train_vae --out family/vae --seconds 120 --lpips data/lpips.safetensors
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import load_file
from torch import Tensor, nn

from scripts.command_line import run
from tenuto.errors import TenutoError
from tenuto.files import read_json, write_json, write_text
from tenuto.quality import psnr
from tenuto.showing.images import grid, save_image
from training.autoencoder import WEIGHTS, Autoencoder, AutoencoderConfig, load_autoencoder
from training.card import table, training_section
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
from training.perceptual import Perceptual, load_perceptual
from training.tiny_imagenet import DEFAULT_PATH, SIZE, SOURCE, TinyImageNet, load, scaled

PERCEPTUAL_WEIGHT = 0.5
KL_WEIGHT = 0.01
LOG_VARIANCE = -4.0  # of the posterior, before training
WIDTHS = ",".join(map(str, AutoencoderConfig().block_out_channels))


class Reconstruction(nn.Module):
    """The autoencoder and its loss as one network, so that both are compiled together."""

    def __init__(self, autoencoder: Autoencoder, perceptual: Perceptual | None) -> None:
        super().__init__()
        self.autoencoder = autoencoder
        self.perceptual = perceptual

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        """Pictures [B, 3, H, W] in [-1, 1] and noise of the latents' shape -> the loss."""
        mean, log_variance = self.autoencoder.encode(x)
        made = self.autoencoder.decode(mean + (log_variance / 2).exp() * noise).float()
        # KL(N(μ, σ²) ‖ N(0, 1)) = (μ² + σ² − 1 − log σ²) / 2
        kl = (mean.square() + log_variance.exp() - 1 - log_variance).mean() / 2
        loss = (made - x).abs().mean() + KL_WEIGHT * kl
        return loss if self.perceptual is None else loss + PERCEPTUAL_WEIGHT * self.perceptual(made, x)


def train_autoencoder(
    data: TinyImageNet,
    config: AutoencoderConfig,
    settings: Settings,
    device: torch.device,
    perceptual: Perceptual | None = None,
    start: dict[str, Tensor] | None = None,
) -> tuple[Autoencoder, Trained]:
    """The autoencoder with the averaged weights, its latents normalised, and the record."""
    torch.manual_seed(settings.seed)
    autoencoder = Autoencoder(config)
    assert autoencoder.quant_conv.bias is not None
    # Little noise at first: otherwise the decoder learns nothing before the encoder has learnt to turn the noise down.
    nn.init.constant_(autoencoder.quant_conv.bias[config.latent_channels :], LOG_VARIANCE)
    if start is not None:
        autoencoder.load_state_dict(start)
    network = Reconstruction(autoencoder, perceptual).to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = data.train_images.to(device)
    shape = (settings.batch, config.latent_channels, config.latent_size, config.latent_size)
    generator = torch.Generator(device).manual_seed(settings.seed)

    def loss_of(forward: nn.Module) -> Tensor:
        chosen = torch.randint(len(images), (settings.batch,), generator=generator, device=device)
        x = scaled(images[chosen])
        mirrored = torch.rand(settings.batch, 1, 1, 1, generator=generator, device=device) < 0.5
        x = torch.where(mirrored, x.flip(-1), x).contiguous(memory_format=torch.channels_last)
        return forward(x, torch.randn(shape, generator=generator, device=device))

    trained = train(network, loss_of, settings)
    prefix = "autoencoder."
    average = {key.removeprefix(prefix): value for key, value in trained.state.items() if key.startswith(prefix)}
    autoencoder.load_state_dict(average)
    autoencoder.eval().requires_grad_(False)
    mean, log_variance = encode_all(autoencoder, data.train_images[:20_000], device)
    latents = mean + (log_variance / 2).exp() * torch.randn_like(mean)
    autoencoder.normalise(latents.mean(dim=(0, 2, 3)), latents.std(dim=(0, 2, 3)))
    trained.state = autoencoder.state_dict()
    return autoencoder, trained


@torch.no_grad()
def encode_all(autoencoder: Autoencoder, images: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and log-variance of the latents of pictures given as bytes, on the device."""
    parts = []
    for part in images.split(1000):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            x = scaled(part.to(device)).contiguous(memory_format=torch.channels_last)
            parts.append(autoencoder.encode(x))
    return torch.cat([mean for mean, _ in parts]).float(), torch.cat([variance for _, variance in parts]).float()


@torch.no_grad()
def decode_all(autoencoder: Autoencoder, latents: Tensor) -> Tensor:
    """Pictures in [-1, 1] on the CPU."""
    return torch.cat([autoencoder.decode(part).float().clamp(-1, 1).cpu() for part in latents.split(500)])


def measure(autoencoder: Autoencoder, images: Tensor, perceptual: Perceptual | None) -> tuple[dict[str, float], Tensor]:
    """How well held-out pictures are reconstructed, from the mean of their latents; and the reconstructions."""
    device = next(autoencoder.parameters()).device
    mean, log_variance = encode_all(autoencoder, images, device)
    made, real = decode_all(autoencoder, mean), scaled(images)
    figures = {
        "psnr": psnr(made, real).mean().item(),
        "l1": (made - real).abs().mean().item(),
        "latent_deviation": mean.std().item(),
        "posterior_deviation": (log_variance / 2).exp().mean().item(),
    }
    if perceptual is not None:
        parts = zip(made.split(500), real.split(500), strict=True)
        with torch.no_grad():
            distances = [perceptual(a.to(device), b.to(device)).item() * len(a) for a, b in parts]
        figures["lpips"] = sum(distances) / len(made)
    return {name: round(value, 4) for name, value in figures.items()}, made


def save(
    out: Path,
    autoencoder: Autoencoder,
    trained: Trained,
    settings: Settings,
    data: TinyImageNet,
    perceptual: Perceptual | None,
    before: dict[str, object] | None = None,
) -> None:
    write_json(out / "config.json", autoencoder.config.to_json())
    save_weights(out, trained.state, "diffusion_pytorch_model{suffix}.safetensors", torch.float16)
    if not (out / WEIGHTS).exists():
        raise TenutoError("The autoencoder's weights do not fit one file of 16 MB: choose smaller --widths.")
    save_record(out, trained, settings, f"{SOURCE}; {len(data.train_images):,} training pictures", before)
    stored = load_autoencoder(out).to(next(autoencoder.parameters()).device)  # what is measured is what is stored
    figures, made = measure(stored, data.test_images[:5000], perceptual)
    write_json(out / "reconstruction.json", figures)
    pairs = torch.stack([scaled(data.test_images[:32]), made[:32]], dim=1).flatten(0, 1)
    save_image(grid(pairs, 16, 2), out / "reconstructions.png")
    write_text(out / "README.md", autoencoder_card(out, autoencoder))
    print(figures)


def autoencoder_card(directory: Path, autoencoder: Autoencoder) -> str:
    config, figures = autoencoder.config, read_json(directory / "reconstruction.json", "reconstruction record")
    parameters = sum(parameter.numel() for parameter in autoencoder.parameters())
    rows = {
        "PSNR": f"{figures['psnr']:.2f} dB",
        "L1": figures["l1"],
        **({"LPIPS (VGG-16, four stages)": figures["lpips"]} if "lpips" in figures else {}),
        "Deviation of the latents": figures["latent_deviation"],
        "Deviation of the posterior": figures["posterior_deviation"],
    }
    return f"""# {directory.name}

An autoencoder ({parameters / 1e6:.1f} million parameters, no attention) that turns {SIZE}×{SIZE} colour pictures into
{config.latent_size}×{config.latent_size} latents of {config.latent_channels} channels and back. It has the layout of
diffusers' `AutoencoderKL`, which reads it: `AutoencoderKL.from_pretrained`. The latents' channels have mean 0 and
variance 1, so the scaling factor is 1. Weights are the training's moving average, stored in float16.

The loss is L1 + {PERCEPTUAL_WEIGHT} LPIPS + {KL_WEIGHT} KL, each a mean. There is no adversarial loss.

{training_section(read_json(directory / "loss.json", "training record"), directory)}
## Reconstruction

Held-out pictures (validation split), encoded to the posterior's mean and decoded.

| | |
|---|---|
{table(rows)}

![Real pictures and their reconstructions, in turns](reconstructions.png)

## Limits

It knows pictures of {SIZE}×{SIZE}. Fine texture and small writing are lost.

## Licence

The weights are for research, as are the pictures they were trained on: Tiny-ImageNet, a part of ImageNet.
"""


def main(
    out: Out,
    seconds: Seconds,
    data: Annotated[Path, typer.Option(help="The folder made by training.tiny_imagenet.")] = DEFAULT_PATH,
    lpips: Annotated[
        Path | None, typer.Option(help="The file made by training.perceptual; none: L1 and KL only.")
    ] = None,
    start: Annotated[Path | None, typer.Option(help="An autoencoder to go on from.")] = None,
    channels: Annotated[int, typer.Option(min=1, help="Of the latents.")] = 4,
    widths: Annotated[str, typer.Option(help="Channels of each level.")] = WIDTHS,
    batch: Batch = 256,
    lr: Rate = 6e-4,
    ema: Ema = 0.998,
    device: Device = default_device(),
    seed: Seed = 0,
    compile: Compile = True,
    max_steps: MaxSteps = None,
) -> None:
    """Train the autoencoder. Ctrl-C ends the training early and saves what it has."""
    settings = Settings(seconds, batch, lr, ema, seed, compile, max_steps, weight_decay=0.0)
    config = AutoencoderConfig(latent_channels=channels, block_out_channels=tuple(map(int, widths.split(","))))
    place, pictures = torch.device(device), load(data)
    perceptual = None if lpips is None else load_perceptual(lpips).to(place)
    state, before = None, None
    if start is not None:
        config = load_autoencoder(start).config
        state = {key: value.float() for key, value in load_file(start / WEIGHTS).items()}
        before = read_json(start / "loss.json", "training record")
    autoencoder, trained = train_autoencoder(pictures, config, settings, place, perceptual, state)
    save(out, autoencoder, trained, settings, pictures, perceptual, before)


if __name__ == "__main__":
    run(main)
