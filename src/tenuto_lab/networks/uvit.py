"""U-ViT (Bao et al., "All are Worth Words"): a vision transformer with the long skips of a U-Net.

Time and class are tokens. Parameter names are those of the published checkpoints. Long skips and `skip_linear` are
not residual updates: they always stay live.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tenuto.models.architecture import Architecture, ConfigError, NoiseLevels
from tenuto.models.layers import (
    Attention,
    Mlp,
    PatchEmbed,
    attention_component,
    attention_flops,
    mlp_component,
    mlp_flops,
    timestep_embedding,
    unpatchify,
)
from tenuto.runtime.compilation import branch_function
from tenuto.runtime.residual import Residual, plain
from tenuto.scheduling.units import Unit


@dataclass(frozen=True)
class UViTConfig:
    """The reference constructor's arguments; the defaults are U-ViT-L/2 on 256×256 ImageNet latents."""

    img_size: int = 32
    patch_size: int = 2
    in_chans: int = 4
    embed_dim: int = 1024
    depth: int = 20
    num_heads: int = 16
    mlp_ratio: float = 4.0
    qkv_bias: bool = False
    mlp_time_embed: bool = False
    num_classes: int = 1001  # includes the null class, which is the last; 0 or less means unconditional
    conv: bool = True
    skip: bool = True
    first_timestep: int = 1  # not an argument of the reference, which counts from 1; diffusers counts from 0

    def __post_init__(self) -> None:
        for name in ("img_size", "patch_size", "in_chans", "embed_dim", "num_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.img_size % self.patch_size:
            raise ConfigError(f"img_size {self.img_size} is not a multiple of patch_size {self.patch_size}")
        if not 0 < self.mlp_ratio < math.inf:
            raise ConfigError(f"mlp_ratio must be positive, not {self.mlp_ratio}")
        if self.embed_dim % self.num_heads:
            raise ConfigError(f"embed_dim {self.embed_dim} is not a multiple of num_heads {self.num_heads}")
        if self.depth < 2 or self.depth % 2:
            raise ConfigError(f"depth counts the blocks that are joined by skips, so it is even, not {self.depth}")

    @property
    def extras(self) -> int:
        """Tokens that are not patches: time, and class where there is one."""
        return 2 if self.num_classes > 0 else 1

    @property
    def tokens(self) -> int:
        return self.extras + (self.img_size // self.patch_size) ** 2

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        return self.in_chans, self.img_size, self.img_size

    @property
    def classes(self) -> int:
        """The number of classes, without the null class."""
        return self.num_classes - 1

    @property
    def null_class(self) -> int:
        return self.num_classes - 1


class UViTBlock(nn.Module):
    def __init__(self, name: str, config: UViTConfig, skip: bool = False) -> None:
        super().__init__()
        self.name = name
        width = config.embed_dim
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, config.num_heads, config.qkv_bias)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, int(width * config.mlp_ratio))
        self.skip_linear = nn.Linear(2 * width, width) if skip else None

    def forward(self, x: Tensor, skip: Tensor | None, residual: Residual) -> Tensor:
        if self.skip_linear is not None and skip is not None:
            x = self.skip_linear(torch.cat([x, skip], dim=-1))
        h = residual(f"{self.name}.attn", x, lambda: self.attend(x))
        return residual(f"{self.name}.mlp", h, lambda: self.feed(h))

    @branch_function
    def attend(self, x: Tensor) -> Tensor:
        return self.attn(self.norm1(x))

    @branch_function
    def feed(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm2(x))


class UViT(nn.Module):
    def __init__(self, config: UViTConfig) -> None:
        super().__init__()
        self.config = config
        width, channels = config.embed_dim, config.in_chans
        self.patch_embed = PatchEmbed(channels, width, config.patch_size)
        self.time_embed = (
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            if config.mlp_time_embed
            else nn.Identity()
        )
        if config.num_classes > 0:
            self.label_emb = nn.Embedding(config.num_classes, width)
        self.pos_embed = nn.Parameter(torch.zeros(1, config.tokens, width))
        half = config.depth // 2
        self.in_blocks = nn.ModuleList(UViTBlock(f"in_blocks.{i}", config) for i in range(half))
        self.mid_block = UViTBlock("mid_block", config)
        self.out_blocks = nn.ModuleList(UViTBlock(f"out_blocks.{i}", config, skip=config.skip) for i in range(half))
        self.norm = nn.LayerNorm(width)
        self.decoder_pred = nn.Linear(width, config.patch_size**2 * channels)
        self.final_layer = nn.Conv2d(channels, channels, 3, padding=1) if config.conv else nn.Identity()

    def forward(self, x: Tensor, t: Tensor, y: Tensor | None = None, residual: Residual = plain) -> Tensor:
        """x [B, C, H, W], t [B], y [B] -> the predicted noise [B, C, H, W]."""
        x = self.patch_embed(x)
        tokens = [self.time_embed(timestep_embedding(t, self.config.embed_dim).to(x.dtype))[:, None], x]
        if self.config.num_classes > 0:
            tokens.insert(0, self.label_emb(y)[:, None])
        x = torch.cat(tokens, dim=1) + self.pos_embed
        skips = []
        for block in self.in_blocks:
            x = block(x, None, residual)
            skips.append(x)
        x = self.mid_block(x, None, residual)
        for block in self.out_blocks:
            x = block(x, skips.pop(), residual)
        patches = self.decoder_pred(self.norm(x))[:, self.config.extras :]
        return self.final_layer(unpatchify(patches, self.config.patch_size))

    def initialize_weights(self) -> None:
        """For training from scratch, as the reference does."""
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif "norm" in name:
                nn.init.ones_(parameter)
            elif not name.startswith(("patch_embed", "label_emb", "final_layer")):
                nn.init.trunc_normal_(parameter, std=0.02)


def units(config: UViTConfig) -> tuple[Unit, ...]:
    n, width = config.tokens, config.embed_dim
    half = config.depth // 2
    blocks = [*(f"in_blocks.{i}" for i in range(half)), "mid_block", *(f"out_blocks.{i}" for i in range(half))]
    result = []
    for block in blocks:
        attention = attention_component(f"{block}.attn", width // config.num_heads)
        result.append(Unit(f"{block}.attn", (attention,), attention_flops(n, width)))
        mlp = mlp_component(f"{block}.mlp")
        result.append(Unit(f"{block}.mlp", (mlp,), mlp_flops(n, width, int(width * config.mlp_ratio))))
    return tuple(result)


# Width -> heads of the published sizes (S, M, L, H). No tensor's shape tells the number of heads.
HEADS_BY_WIDTH = {512: 8, 768: 12, 1024: 16, 1152: 16}


def infer_config(shapes: Mapping[str, tuple[int, ...]]) -> UViTConfig:
    """Infer the config of a published checkpoint from its tensors' shapes, because it is a file without a config."""
    width, channels, patch, _ = shapes["patch_embed.proj.weight"]
    if width not in HEADS_BY_WIDTH:
        raise ConfigError(
            f"num_heads cannot be told from the tensors, and width {width} is none of the published sizes "
            f"{sorted(HEADS_BY_WIDTH)}; put a config.json with num_heads beside the file"
        )
    classes = shapes.get("label_emb.weight", (-1,))[0]
    extras = 2 if classes > 0 else 1
    return UViTConfig(
        img_size=math.isqrt(shapes["pos_embed"][1] - extras) * patch,
        patch_size=patch,
        in_chans=channels,
        embed_dim=width,
        depth=2 * (1 + max(int(key.split(".")[1]) for key in shapes if key.startswith("in_blocks."))),
        num_heads=HEADS_BY_WIDTH[width],
        mlp_ratio=shapes["mid_block.mlp.fc1.weight"][0] / width,
        qkv_bias="mid_block.attn.qkv.bias" in shapes,
        mlp_time_embed="time_embed.0.weight" in shapes,
        num_classes=classes,
        conv="final_layer.weight" in shapes,
        skip="out_blocks.0.skip_linear.weight" in shapes,
    )


ARCHITECTURE = Architecture(
    name="uvit",
    title="U-ViT: vision transformer with long skips",
    config=UViTConfig,
    published="U-ViT-L/2, ImageNet 256×256",
    network=UViT,
    units=units,
    infer_config=infer_config,
    signatures=("mid_block.attn.qkv.weight",),
    asks_for="class",
    theory="partial",
    held="attention and MLP updates",
    live="residual stream, long skips and skip_linear, time and class tokens, final convolution",
    tested_with="tiny-uvit; an independent float64 forward; U-ViT-L/2's shapes",
    guidance=1.5,
    held_time=0.11,
    noise=NoiseLevels("scaled_linear", 0.00085, 0.012),
)
