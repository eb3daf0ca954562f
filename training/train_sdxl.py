"""Trains a small UNet of SDXL's structure on captioned CIFAR-10 pictures for a given time, text encoder included.

It is written in diffusers' layout: `unet/`, `text_encoder/` and `scheduler/` in one directory.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import read_json, write_json
from tenuto_lab.networks.text_encoder import TextConfig, TextEncoder
from tenuto_lab.networks.unet import NOISE as LATENT_NOISE
from tenuto_lab.networks.unet import UNetConfig
from tenuto_lab.seam.attachment import build
from training.captions import COLOURS, EMPTY, NOUNS, captions, colours, vocabulary
from training.cifar10 import DEFAULT_PATH, PACKAGE, SIZE, Cifar10, load, scaled
from training.ddim import Draw, chance, noise_loss, noised_batches
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

# SDXL stops at the least noise there is, which a VAE forgives; pixels show it.
NOISE = replace(LATENT_NOISE, ends_clean=True)
TEXT = TextConfig(vocabulary=tuple(vocabulary()))
SHIPPED: dict[str, Any] = {  # SDXL base, narrower, with fewer transformer layers, and in pixels
    "_class_name": "UNet2DConditionModel",
    "sample_size": SIZE,
    "in_channels": 3,
    "out_channels": 3,
    "block_out_channels": [64, 96, 160],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "layers_per_block": 2,
    "transformer_layers_per_block": [1, 1, 2],
    "attention_head_dim": [2, 3, 5],  # diffusers' name for the number of heads, of 32 channels each here
    "cross_attention_dim": TEXT.width,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 32,
    "projection_class_embeddings_input_dim": 6 * 32 + TEXT.width,
}
EMPTY_SHARE = 0.1  # of captions left empty, for guidance
COLOUR_SHARE = 0.5  # of captions that name the colour


class Painter(nn.Module):
    """The text encoder and the UNet as one network to train."""

    time_ids: Tensor

    def __init__(self, unet: nn.Module, text_encoder: TextEncoder, size: int = SIZE) -> None:
        super().__init__()
        self.unet = unet
        self.text_encoder = text_encoder
        time_ids = (size, size, 0, 0, size, size)  # original size, crop, target size: always the same here
        self.register_buffer("time_ids", torch.tensor([time_ids], dtype=torch.float32), persistent=False)

    def forward(self, x: Tensor, t: Tensor, ids: Tensor) -> Tensor:
        """Noised images [B, C, size, size], timesteps [B], captions [B, length] -> the noise in the images."""
        tokens, pooled = self.text_encoder(ids)
        added = {"text_embeds": pooled, "time_ids": self.time_ids.expand(len(x), -1)}
        return self.unet(x, t, tokens, added_cond_kwargs=added, return_dict=False)[0]


def parse_config(given: str | None, shipped: dict[str, Any] = SHIPPED) -> dict[str, Any]:
    """A UNet's config from a JSON file or from JSON itself; what it does not say is the shipped model's."""
    if given is None:
        return shipped
    try:
        values = json.loads(given) if given.lstrip().startswith("{") else read_json(Path(given), "UNet config")
    except json.JSONDecodeError as error:
        raise UsageError(f"The config is not JSON: {error}.") from error
    config = {**shipped, **values}
    fixed = ("in_channels", "out_channels", "sample_size", "cross_attention_dim", "addition_embed_type")
    if changed := [name for name in fixed if config[name] != shipped[name]]:
        raise UsageError(f"The data and the text encoder fix {changed[0]}: it must be {shipped[changed[0]]}.")
    UNetConfig.from_diffusers(config)
    return config


def make_painter(config: dict[str, Any], text: TextConfig = TEXT) -> Painter:
    """A painter with fresh weights, every residual branch silent at first, as diffusion UNets train best."""
    painter = Painter(build(config), TextEncoder(text), config["sample_size"])
    for name, parameter in painter.unet.named_parameters():
        if name.startswith("conv_out.") or ".conv2." in name or ".proj_out." in name:
            nn.init.zeros_(parameter)
    nn.init.normal_(painter.text_encoder.tokens.weight, std=0.02)
    return painter


def caption_table(encoder: TextEncoder) -> Tensor:
    """Token ids [class, 1 + colour, variant, length]; the first of the second axis names no colour."""
    return torch.stack(
        [
            torch.stack([encoder.tokenize(captions(label, colour)) for colour in (None, *COLOURS)])
            for label in range(len(NOUNS))
        ]
    )


def pictures(data: Cifar10, encoder: TextEncoder, size: int, device: torch.device) -> Draw:
    images, labels = data.train_images.to(device), data.train_labels.to(device)
    seen, captioned = colours(data.train_images).to(device), caption_table(encoder).to(device)
    empty = encoder.tokenize([EMPTY]).to(device)

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        def below(bound: int) -> Tensor:
            return torch.randint(bound, (size,), generator=generator, device=device)

        chosen = below(len(images))
        x = scaled(images[chosen])
        x = torch.where(chance(0.5, x, generator)[:, None, None, None], x.flip(-1), x)
        colour = torch.where(chance(COLOUR_SHARE, x, generator), 1 + seen[chosen], 0)
        ids = captioned[labels[chosen], colour, below(captioned.shape[2])]
        ids = torch.where(chance(EMPTY_SHARE, x, generator)[:, None], empty, ids)
        return x.contiguous(memory_format=torch.channels_last), ids

    return draw


def train_painter(data: Cifar10, config: dict[str, Any], settings: Settings, device: torch.device) -> Trained:
    torch.manual_seed(settings.seed)
    painter = make_painter(config).to(device)
    painter.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    draw = pictures(data, painter.text_encoder, settings.batch, device)
    return train(painter, noise_loss(noised_batches(draw, NOISE, settings.seed, device)), settings)


def part(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}


def save_painter(
    out: Path,
    state: dict[str, Tensor],
    config: dict[str, Any],
    text: TextConfig,
    scheduler: dict[str, Any],
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """A painter's state dict in diffusers' layout, with the config of the scheduler that draws."""
    import diffusers

    version = {"_diffusers_version": diffusers.__version__}
    write_json(out / "unet" / "config.json", {"_class_name": config["_class_name"], **version, **config})
    save_weights(out / "unet", part(state, "unet"), "diffusion_pytorch_model{suffix}.safetensors", dtype)
    write_json(out / "text_encoder" / "config.json", text.to_json())
    save_weights(out / "text_encoder", part(state, "text_encoder"), dtype=dtype)
    named = {"_class_name": scheduler["_class_name"], **version, **scheduler}
    write_json(out / "scheduler" / "scheduler_config.json", named)


def save(out: Path, trained: Trained, config: dict[str, Any], settings: Settings) -> None:
    scheduler = {
        "_class_name": "DDIMScheduler",
        "num_train_timesteps": NOISE.timesteps,
        "beta_schedule": NOISE.schedule,
        "beta_start": NOISE.start,
        "beta_end": NOISE.end,
        "prediction_type": "epsilon",
        "timestep_spacing": "leading",
        "steps_offset": NOISE.offset,
        "set_alpha_to_one": NOISE.ends_clean,
        "clip_sample": False,
    }
    save_painter(out, trained.state, config, TEXT, scheduler)
    save_record(
        out,
        trained,
        settings,
        f"npm {PACKAGE} (50,000 pictures, kept as JPEG of quality 92), captioned by class and colour",
    )


def main(
    out: Out,
    seconds: Seconds,
    data: Annotated[Path, typer.Option(help="The file made by training.cifar10.")] = DEFAULT_PATH,
    config: Config = None,
    batch: Batch = 512,
    lr: Rate = 6e-4,
    ema: Ema = 0.9995,
    device: Device = default_device(),
    seed: Seed = 0,
    compile: Compile = True,
    max_steps: MaxSteps = None,
) -> None:
    """Train an SDXL in miniature on CIFAR-10. Ctrl-C ends the training early and saves what it has."""
    unet, settings = parse_config(config), Settings(seconds, batch, lr, ema, seed, compile, max_steps)
    save(out, train_painter(load(data), unet, settings, torch.device(device)), unet, settings)


if __name__ == "__main__":
    run(main)
