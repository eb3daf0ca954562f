"""DiT (Peebles & Xie, "Scalable Diffusion Models with Transformers"): a class-conditional diffusion transformer.

Parameter names are those of the published checkpoints. Both residual additions of a block go through the seam.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
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
from tenuto.runtime.residual import Deferred, Residual, plain
from tenuto.scheduling.units import Unit

FREQUENCIES = 256  # width of the sinusoidal timestep embedding, fixed in the reference


@dataclass(frozen=True)
class DiTConfig:
    """The reference constructor's arguments; the defaults are DiT-XL/2 on 256×256 latents."""

    input_size: int = 32
    patch_size: int = 2
    in_channels: int = 4
    hidden_size: int = 1152
    depth: int = 28
    num_heads: int = 16
    mlp_ratio: float = 4.0
    class_dropout_prob: float = 0.1
    num_classes: int = 1000
    learn_sigma: bool = True

    def __post_init__(self) -> None:
        for name in ("input_size", "patch_size", "in_channels", "hidden_size", "depth", "num_heads", "num_classes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.input_size % self.patch_size:
            raise ConfigError(f"input_size {self.input_size} is not a multiple of patch_size {self.patch_size}")
        if not 0 < self.mlp_ratio < math.inf:
            raise ConfigError(f"mlp_ratio must be positive, not {self.mlp_ratio}")
        if self.hidden_size % self.num_heads:
            raise ConfigError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.hidden_size % 4:
            raise ConfigError(f"hidden_size {self.hidden_size} is not a multiple of 4, as the position table needs")

    @property
    def tokens(self) -> int:
        return (self.input_size // self.patch_size) ** 2

    @property
    def mlp_width(self) -> int:
        return int(self.hidden_size * self.mlp_ratio)

    @property
    def out_channels(self) -> int:
        return self.in_channels * (2 if self.learn_sigma else 1)

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        return self.in_channels, self.input_size, self.input_size

    @property
    def classes(self) -> int:
        """The number of classes, without the null class."""
        return self.num_classes

    @property
    def null_class(self) -> int:
        """The label that means "no class", for guidance."""
        if self.class_dropout_prob == 0:
            raise ConfigError("this model was trained without class dropout: it has no null class to guide against")
        return self.num_classes


class TimestepEmbedder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        return self.mlp(timestep_embedding(t, FREQUENCIES).to(next(self.mlp.parameters()).dtype))


class LabelEmbedder(nn.Module):
    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        null = 1 if config.class_dropout_prob > 0 else 0
        self.embedding_table = nn.Embedding(config.num_classes + null, config.hidden_size)

    def forward(self, y: Tensor) -> Tensor:
        return self.embedding_table(y)


Modulations = tuple[Tensor, Tensor]  # of the blocks [depth, B, 6 D], and of the final layer [B, 2 D]


def _chunks(compute: Callable[[], Tensor], count: int) -> Deferred:
    """[B, count · D] -> `count` tensors [B, 1, D], computed only when they are used."""
    return Deferred(lambda: compute().unsqueeze(1).chunk(count, dim=-1))


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale) + shift


class DiTBlock(nn.Module):
    """Attention and MLP, each normalised, shifted, scaled and gated by the timestep and class (AdaLN-Zero)."""

    def __init__(self, name: str, config: DiTConfig) -> None:
        super().__init__()
        self.name = name
        width = config.hidden_size
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(width, config.num_heads)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.mlp = Mlp(width, config.mlp_width, approximate="tanh")
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, modulation: Deferred, residual: Residual) -> Tensor:
        m = modulation  # (shift, scale, gate) of attention, then of the MLP, each [B, 1, D]
        h = residual(f"{self.name}.attn", x, lambda: self.attend(x, m[0], m[1]), gate=lambda: m[2])
        return residual(f"{self.name}.mlp", h, lambda: self.feed(h, m[3], m[4]), gate=lambda: m[5])

    @branch_function
    def attend(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return self.attn(modulate(self.norm1(x), shift, scale))

    @branch_function
    def feed(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return self.mlp(modulate(self.norm2(x), shift, scale))


class FinalLayer(nn.Module):
    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm_final = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(width, config.patch_size**2 * config.out_channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, modulation: Deferred) -> Tensor:
        return self.linear(modulate(self.norm_final(x), modulation[0], modulation[1]))


class DiT(nn.Module):
    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        self.x_embedder = PatchEmbed(config.in_channels, config.hidden_size, config.patch_size)
        self.t_embedder = TimestepEmbedder(config.hidden_size)
        self.y_embedder = LabelEmbedder(config)
        positions = sincos_positions(config.hidden_size, config.input_size // config.patch_size)
        self.pos_embed = nn.Parameter(positions, requires_grad=False)
        self.blocks = nn.ModuleList(DiTBlock(f"blocks.{i}", config) for i in range(config.depth))
        self.final_layer = FinalLayer(config)

    def forward(
        self, x: Tensor, t: Tensor, y: Tensor, residual: Residual = plain, modulations: Modulations | None = None
    ) -> Tensor:
        """x [B, C, H, W], t [B], y [B] -> the predicted noise (and variance, if learned) [B, out_channels, H, W].

        modulations  what `prepare` returned for this timestep and these classes; if given, t and y are not used
        """
        if modulations is None:
            c = self.t_embedder(t) + self.y_embedder(y)
            parts = [_chunks(partial(block.adaLN_modulation, c), 6) for block in self.layers]
            final = _chunks(partial(self.final_layer.adaLN_modulation, c), 2)
        else:
            parts = [_chunks(partial(modulations[0].select, 0, i), 6) for i in range(len(self.blocks))]
            final = _chunks(lambda: modulations[1], 2)
        x = self.x_embedder(x) + self.pos_embed
        for block, part in zip(self.blocks, parts, strict=True):
            x = block(x, part, residual)
        return unpatchify(self.final_layer(x, final), self.config.patch_size)

    @property
    def layers(self) -> list[DiTBlock]:
        return cast("list[DiTBlock]", list(self.blocks))

    def prepare(self, t: Tensor, y: Tensor) -> list[dict[str, Any]]:
        """Compute ahead all that depends only on timesteps [T] and classes [B], with one matrix product per layer.

        Returns the keyword arguments for `forward`, one dict per timestep.
        """
        c = F.silu(self.t_embedder(t)[:, None] + self.y_embedder(y)[None])  # [T, B, D]
        blocks = c.new_empty(len(t), len(self.layers), len(y), 6 * c.shape[-1])
        for i, block in enumerate(self.layers):  # written in place: a list and its stack would take twice the memory
            blocks[:, i] = block.adaLN_modulation[1](c)
        final = self.final_layer.adaLN_modulation[1](c)  # [T, B, 2 D]
        return [{"modulations": (blocks[i], final[i])} for i in range(len(t))]

    def prepared_bytes(self, batch: int) -> int:
        """The memory that `prepare` takes for one timestep."""
        width = 6 * len(self.blocks) + 2
        return batch * width * self.config.hidden_size * self.pos_embed.element_size()

    def initialize_weights(self) -> None:
        """For training from scratch: Xavier weights, and AdaLN-Zero, so that every block starts as the identity."""
        nn.init.xavier_uniform_(self.x_embedder.proj.weight.flatten(1))
        nn.init.normal_(self.y_embedder.embedding_table.weight, std=0.02)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias") or "adaLN_modulation" in name or name == "final_layer.linear.weight":
                nn.init.zeros_(parameter)
            elif name.startswith("t_embedder"):
                nn.init.normal_(parameter, std=0.02)
            elif name.startswith("blocks"):
                nn.init.xavier_uniform_(parameter)


def sincos_positions(width: int, side: int) -> Tensor:
    """The fixed position table [1, side², width]: half of the width for the column, half for the row."""
    rates = 10_000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = torch.arange(side, dtype=torch.float64)[:, None] * rates
    table = torch.cat([angles.sin(), angles.cos()], dim=1)  # [side, width / 2]
    columns = table[None, :, :].expand(side, side, -1)
    rows = table[:, None, :].expand(side, side, -1)
    return torch.cat([columns, rows], dim=-1).flatten(0, 1).float()[None]


def units(config: DiTConfig) -> tuple[Unit, ...]:
    n, width = config.tokens, config.hidden_size
    result = []
    for block in (f"blocks.{i}" for i in range(config.depth)):
        attention = attention_component(f"{block}.attn", width // config.num_heads)
        result.append(Unit(f"{block}.attn", (attention,), attention_flops(n, width)))
        result.append(Unit(f"{block}.mlp", (mlp_component(f"{block}.mlp"),), mlp_flops(n, width, config.mlp_width)))
    return tuple(result)


# Width -> heads of the published sizes (S, B, L, XL). No tensor's shape tells the number of heads.
HEADS_BY_WIDTH = {384: 6, 768: 12, 1024: 16, 1152: 16}


def infer_config(shapes: Mapping[str, tuple[int, ...]]) -> DiTConfig:
    """Infer the config of a published checkpoint from its tensors' shapes, because it is a file without a config."""
    width, channels, patch, _ = shapes["x_embedder.proj.weight"]
    if width not in HEADS_BY_WIDTH:
        raise ConfigError(
            f"num_heads cannot be told from the tensors, and width {width} is none of the published sizes "
            f"{sorted(HEADS_BY_WIDTH)}; put a config.json with num_heads beside the file"
        )
    return DiTConfig(
        input_size=math.isqrt(shapes["pos_embed"][1]) * patch,
        patch_size=patch,
        in_channels=channels,
        hidden_size=width,
        depth=1 + max(int(key.split(".")[1]) for key in shapes if key.startswith("blocks.")),
        num_heads=HEADS_BY_WIDTH[width],
        mlp_ratio=shapes["blocks.0.mlp.fc1.weight"][0] / width,
        num_classes=shapes["y_embedder.embedding_table.weight"][0] - 1,  # published models have a null class
        learn_sigma=shapes["final_layer.linear.bias"][0] == 2 * channels * patch**2,
    )


ARCHITECTURE = Architecture(
    name="dit",
    title="DiT: class-conditional diffusion transformer",
    config=DiTConfig,
    published="DiT-XL/2, 256×256",
    network=DiT,
    units=units,
    infer_config=infer_config,
    signatures=("x_embedder.proj.weight",),
    asks_for="class",
    theory="heuristic",
    held="attention and MLP updates, before or after AdaLN's gate",
    live="residual stream, timestep and class conditioning, gates (held before them), final layer",
    tested_with="tiny-dit; diffusers' DiTTransformer2DModel on random weights; DiT-XL/2's shapes",
    guidance=1.5,
    held_time=0.05,
    noise=NoiseLevels("linear", 1e-4, 0.02),
)
