"""The small autoencoder that turns pictures into latents and back: diffusers' AutoencoderKL, without its attention.

Tensors have diffusers' names and `to_json` writes its config, so `AutoencoderKL.from_pretrained` reads what is stored
here. Training folds the normalisation into the 1×1 convolutions around the latents: every channel of the latents has
mean 0 and variance 1 as it is, and `scaling_factor` is 1.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tenuto.errors import CheckpointError
from tenuto.files import read_json

WEIGHTS = "diffusion_pytorch_model.safetensors"


@dataclass(frozen=True)
class AutoencoderConfig:
    """The arguments of AutoencoderKL that differ between autoencoders of this kind."""

    latent_channels: int = 4
    block_out_channels: tuple[int, ...] = (32, 64, 192)  # each level but the last halves the picture
    layers_per_block: int = 1
    norm_num_groups: int = 16
    sample_size: int = 64
    in_channels: int = 3

    def __post_init__(self) -> None:
        if any(width % self.norm_num_groups for width in self.block_out_channels):
            raise CheckpointError(
                f"block_out_channels {self.block_out_channels} are not multiples of {self.norm_num_groups} groups."
            )

    @property
    def latent_size(self) -> int:
        return self.sample_size // 2 ** (len(self.block_out_channels) - 1)

    def to_json(self) -> dict[str, Any]:
        levels = len(self.block_out_channels)
        return {
            "_class_name": "AutoencoderKL",
            "in_channels": self.in_channels,
            "out_channels": self.in_channels,
            "down_block_types": ["DownEncoderBlock2D"] * levels,
            "up_block_types": ["UpDecoderBlock2D"] * levels,
            "block_out_channels": list(self.block_out_channels),
            "layers_per_block": self.layers_per_block,
            "act_fn": "silu",
            "latent_channels": self.latent_channels,
            "norm_num_groups": self.norm_num_groups,
            "sample_size": self.sample_size,
            "scaling_factor": 1.0,
            "mid_block_add_attention": False,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "AutoencoderConfig":
        if values.get("mid_block_add_attention", True) or values.get("scaling_factor") != 1.0:
            raise CheckpointError("The autoencoder has attention or a scaling factor: open it with diffusers.")
        given = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        return cls(**{**given, "block_out_channels": tuple(given["block_out_channels"])})


class ResnetBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, inputs, eps=1e-6)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, outputs, eps=1e-6)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Downsample(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Level(nn.Module):
    """The residual blocks of one resolution, and the way to the next."""

    def __init__(self, inputs: int, outputs: int, layers: int, groups: int, resample: str = "", last: bool = True):
        super().__init__()
        self.resnets = nn.ModuleList(ResnetBlock(inputs if i == 0 else outputs, outputs, groups) for i in range(layers))
        if resample and not last:
            sampler = Downsample if resample == "downsamplers" else Upsample
            setattr(self, resample, nn.ModuleList([sampler(outputs)]))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.children():  # in the order in which they were made
            for module in cast("nn.ModuleList", part):
                x = module(x)
        return x


class Encoder(nn.Module):
    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        widths, groups = config.block_out_channels, config.norm_num_groups
        self.conv_in = nn.Conv2d(config.in_channels, widths[0], 3, padding=1)
        self.down_blocks = nn.ModuleList(
            Level(before, width, config.layers_per_block, groups, "downsamplers", i == len(widths) - 1)
            for i, (before, width) in enumerate(zip((widths[0], *widths), widths, strict=False))
        )
        self.mid_block = Level(widths[-1], widths[-1], 2, groups)
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], eps=1e-6)
        self.conv_out = nn.Conv2d(widths[-1], 2 * config.latent_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for block in self.down_blocks:
            x = block(x)
        return self.conv_out(F.silu(self.conv_norm_out(self.mid_block(x))))


class Decoder(nn.Module):
    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        widths, groups = config.block_out_channels[::-1], config.norm_num_groups
        self.conv_in = nn.Conv2d(config.latent_channels, widths[0], 3, padding=1)
        self.up_blocks = nn.ModuleList(
            Level(before, width, config.layers_per_block + 1, groups, "upsamplers", i == len(widths) - 1)
            for i, (before, width) in enumerate(zip((widths[0], *widths), widths, strict=False))
        )
        self.mid_block = Level(widths[0], widths[0], 2, groups)
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], eps=1e-6)
        self.conv_out = nn.Conv2d(widths[-1], config.in_channels, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.mid_block(self.conv_in(z))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class Autoencoder(nn.Module):
    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.quant_conv = nn.Conv2d(2 * config.latent_channels, 2 * config.latent_channels, 1)
        self.post_quant_conv = nn.Conv2d(config.latent_channels, config.latent_channels, 1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Pictures [B, 3, H, W] in [-1, 1] -> mean and log-variance of their latents, each [B, C, H / 4, W / 4]."""
        mean, log_variance = self.quant_conv(self.encoder(x)).float().chunk(2, dim=1)
        return mean, log_variance.clamp(-30, 20)

    def decode(self, z: Tensor) -> Tensor:
        return self.decoder(self.post_quant_conv(z))

    @torch.no_grad()
    def normalise(self, mean: Tensor, std: Tensor) -> None:
        """Makes latents whose channels had these means and deviations [C] come out with mean 0 and variance 1."""
        channels, before, after = len(mean), self.quant_conv, self.post_quant_conv
        assert before.bias is not None and after.bias is not None
        before.weight[:channels] /= std[:, None, None, None]
        before.bias[:channels] = (before.bias[:channels] - mean) / std
        before.bias[channels:] -= 2 * std.log()
        after.bias += after.weight[:, :, 0, 0] @ mean
        after.weight *= std[None, :, None, None]


def load_autoencoder(directory: Path) -> Autoencoder:
    """The autoencoder stored in a directory, ready to decode, in float32."""
    autoencoder = Autoencoder(AutoencoderConfig.from_json(read_json(directory / "config.json", "autoencoder config")))
    try:
        state = load_file(directory / WEIGHTS)
        autoencoder.load_state_dict({key: value.float() for key, value in state.items()})
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"{directory / WEIGHTS} does not hold this autoencoder's weights: {error}") from error
    return autoencoder.eval().requires_grad_(False)
