"""LLaDA (Nie et al., "Large Language Diffusion Models"): a masked diffusion language model.

Parameter names are those of the published checkpoints. Both residual additions of a block go through the seam. There
is no timestep: the network sees how far it is from the number of masks left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tenuto.compilation import at_once, branch_function
from tenuto.models.architecture import Architecture, ConfigError, config_from_fields
from tenuto.residual import Deferred, Residual, plain
from tenuto.rows import Keys, places_of, take
from tenuto.units import Component, Matrix, Unit


@dataclass(frozen=True)
class LLaDAConfig:
    """The part of LLaDA's config.json that shapes the network; the defaults are LLaDA-8B."""

    d_model: int = 4096
    n_layers: int = 32
    n_heads: int = 32
    n_kv_heads: int = 32
    mlp_hidden_size: int = 12288
    vocab_size: int = 126464
    embedding_size: int = 126464  # rows of the embedding and of the head: the vocabulary, perhaps padded
    max_sequence_length: int = 4096
    rope_theta: float = 500_000.0
    rms_norm_eps: float = 1e-5
    mask_token_id: int = 126336
    eos_token_id: int = 126081
    weight_tying: bool = False

    def __post_init__(self) -> None:
        sizes = ("d_model", "n_layers", "n_heads", "n_kv_heads", "mlp_hidden_size", "vocab_size", "max_sequence_length")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.d_model % (2 * self.n_heads):
            raise ConfigError(f"d_model {self.d_model} does not give each of {self.n_heads} heads an even width")
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}")
        if self.embedding_size < self.vocab_size:
            raise ConfigError(f"embedding_size {self.embedding_size} is less than vocab_size {self.vocab_size}")
        for name in ("mask_token_id", "eos_token_id"):
            if not 0 <= getattr(self, name) < self.embedding_size:
                raise ConfigError(f"{name} {getattr(self, name)} is none of the {self.embedding_size} tokens")
        if self.mask_token_id == self.eos_token_id:
            raise ConfigError(f"mask_token_id and eos_token_id are both {self.mask_token_id}")
        if not (self.rope_theta > 0 and self.rms_norm_eps > 0):
            raise ConfigError("rope_theta and rms_norm_eps must be positive")
        if self.weight_tying:
            raise ConfigError("weight_tying is true, but only a separate head (weight_tying false) is implemented")

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads


# What published configs say besides, and the only values of it that this network implements.
IMPLEMENTED: Mapping[str, tuple[Any, ...]] = {
    "activation_type": ("silu",),
    "alibi": (False,),
    "attention_layer_norm": (False,),
    "bias_for_layer_norm": (False, None),
    "block_group_size": (1,),
    "block_type": ("llama",),
    "clip_qkv": (None,),
    "include_bias": (False,),
    "include_qkv_bias": (False, None),
    "input_emb_norm": (False,),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "multi_query_attention": (None, False),
    "rope": (True,),
    "rope_full_precision": (True,),
    "scale_logits": (False,),
}
# How it was trained, stored or wrapped: nothing of it changes what the network computes.
WITHOUT_EFFECT = (
    "alibi_bias_max architectures attention_dropout attention_layer_norm_with_affine auto_map dtype "
    "embedding_dropout flash_attention init_cutoff_factor init_device init_fn init_std mlp_ratio model_type "
    "pad_token_id precision residual_dropout torch_dtype transformers_version use_cache"
)


def from_published(values: Mapping[str, Any]) -> LLaDAConfig:
    """The config that a published config.json describes, or an error naming what in it is not implemented."""
    names = {field.name for field in fields(LLaDAConfig)}
    known = names.union(IMPLEMENTED, WITHOUT_EFFECT.split())
    if unknown := [key for key in values if key not in known and not key.startswith("_")]:
        raise ConfigError(f"it has unknown argument(s) {', '.join(unknown)}")
    for key, accepted in IMPLEMENTED.items():
        if key in values and values[key] not in accepted:
            raise ConfigError(f"{key} is {values[key]!r}, but only {accepted[0]!r} is implemented")
    given = {key: value for key, value in values.items() if key in names}
    # Null in a published config means "as the other one".
    if given.get("n_kv_heads", 0) is None:
        given["n_kv_heads"] = given.get("n_heads", LLaDAConfig.n_heads)
    if given.get("embedding_size", 0) is None:
        given["embedding_size"] = given.get("vocab_size", LLaDAConfig.vocab_size)
    if given.get("mlp_hidden_size", 0) is None:
        given["mlp_hidden_size"] = int((values.get("mlp_ratio") or 4) * given.get("d_model", LLaDAConfig.d_model))
    return config_from_fields(LLaDAConfig, given)


Memory = tuple[Keys, Tensor | None] | None


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()  # in bfloat16 the mean of squares would lose most of its digits
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def rotary_angles(places: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines for tokens at these places, [B or 1, N] -> each [B or 1, 1, N, head_dim / 2], in float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=places.device) / head_dim
    angles = places[:, None, :, None] * (1.0 / theta**exponents)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, channel i paired with channel i + head_dim / 2."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class LLaDABlock(nn.Module):
    """Attention to every token, before and after, and a SwiGLU MLP; each normalised first."""

    def __init__(self, name: str, config: LLaDAConfig) -> None:
        super().__init__()
        self.name, self.config = name, config
        width, hidden, kv_width = config.d_model, config.mlp_hidden_size, config.n_kv_heads * config.head_dim
        self.attn_norm = RMSNorm(width, config.rms_norm_eps)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_width, bias=False)
        self.v_proj = nn.Linear(width, kv_width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.ff_norm = RMSNorm(width, config.rms_norm_eps)
        self.ff_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.ff_out = nn.Linear(hidden, width, bias=False)

    def forward(
        self, x: Tensor, rope: Deferred, mask: Tensor | None, residual: Residual, memory: Memory = None
    ) -> Tensor:
        if memory is None:
            attend = partial(self.attend, x)
            h = residual(f"{self.name}.attn", x, lambda rows=None: attend(rope[0], rope[1], mask, *_given(rows)))
        else:
            h = residual(f"{self.name}.attn", x, lambda: self.remember(x, rope[0], rope[1], mask, *memory))
        return residual(f"{self.name}.mlp", h, lambda rows=None: self.feed(h if rows is None else take(h, rows)))

    @branch_function
    def attend(
        self, x: Tensor, cosines: Tensor, sines: Tensor, mask: Tensor | None, rows: Tensor | None = None
    ) -> Tensor:
        """What every token, or those in rows [B, P], find among all."""
        x = self.attn_norm(x)
        asking = x if rows is None else take(x, rows)
        projected = (self.q_proj(asking), self.k_proj(x), self.v_proj(x))
        q, k, v = (y.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2) for y in projected)  # [B, heads, N, d_h]
        k = rotate(k, cosines, sines)
        if rows is not None:
            cosines, sines = (take(a[:, 0].expand(len(rows), -1, -1), rows)[:, None] for a in (cosines, sines))
        return self._combined(rotate(q, cosines, sines), k, v, mask)

    def remember(
        self, x: Tensor, cosines: Tensor, sines: Tensor, mask: Tensor | None, keys: Keys, rows: Tensor | None
    ) -> Tensor:
        """Attention whose keys and values are kept; of x at rows only, if there are any, to all that is kept."""
        q, k, v = at_once(self.project, x, cosines, sines)
        if rows is None:
            keys.write(self.name, k, v)
        else:
            k, v = keys.update(self.name, rows, k, v)
        return self.combine(q, k, v, mask)

    @branch_function
    def project(self, x: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.attn_norm(x)
        projected = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (y.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2) for y in projected)
        return rotate(q, cosines, sines), rotate(k, cosines, sines), v

    @branch_function
    def combine(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return self._combined(q, k, v, mask)

    def _combined(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if (shared := self.config.n_heads // self.config.n_kv_heads) > 1:
            k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        return self.attn_out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))

    @branch_function
    def feed(self, x: Tensor) -> Tensor:
        x = self.ff_norm(x)
        return self.ff_out(F.silu(self.ff_proj(x)) * self.up_proj(x))


def _given(rows: Tensor | None) -> tuple[Tensor, ...]:
    return () if rows is None else (rows,)


class Transformer(nn.Module):
    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.embedding_size, config.d_model)
        self.blocks = nn.ModuleList(LLaDABlock(f"blocks.{i}", config) for i in range(config.n_layers))
        self.ln_f = RMSNorm(config.d_model, config.rms_norm_eps)
        self.ff_out = nn.Linear(config.d_model, config.embedding_size, bias=False)

    def forward(
        self,
        tokens: Tensor,
        residual: Residual,
        attention_mask: Tensor | None,
        positions: Tensor | None,
        memory: Memory = None,
    ) -> Tensor:
        if attention_mask is None:
            mask, places = None, torch.arange(tokens.shape[1], device=tokens.device)[None]
        else:
            mask = attention_mask[:, None, None, :]  # every query may look at the same real keys
            places = (attention_mask.cumsum(1) - 1).clamp(min=0)  # counted from each row's first real token
        if positions is not None and positions.dim() == 1:
            positions = positions.expand(len(tokens), -1)
        if memory is not None and (rows := memory[1]) is not None:
            tokens, places = tokens.gather(1, rows), places.expand(len(rows), -1).gather(1, rows)
            positions = None if positions is None else places_of(positions, rows)
        rope = Deferred(lambda: rotary_angles(places, self.config.head_dim, self.config.rope_theta))
        h = self.wte(tokens)
        for block in self.blocks:
            h = block(h, rope, mask, residual, memory)
        if positions is not None:
            h = take(h, positions)
        return self.ff_out(self.ln_f(h))


class LLaDA(nn.Module):
    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict({"transformer": Transformer(config)})

    def forward(
        self,
        tokens: Tensor,
        residual: Residual = plain,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        memory: Memory = None,
    ) -> Tensor:
        """tokens [B, N] -> logits [B, N, embedding_size], or [B, P, embedding_size] for P positions.

        attention_mask  bool [B, N], True at real tokens; for prompts padded on the left. None: all are real
        positions       int [P] or [B, P]: where logits are wanted, in all rows or in each. None: everywhere
        memory          (keys, rows): keys and values are kept there. If rows [B, R] are given, only tokens there are
                        looked at, with what was kept of all others
        """
        return self.model["transformer"](tokens, residual, attention_mask, positions, memory)

    def initialize_weights(self) -> None:
        """For training from scratch: small normal weights, those that write to the stream smaller with depth."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes = ".blocks." in name and name.endswith(("attn_out.weight", "ff_out.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * self.config.n_layers) ** 0.5 if writes else 0.02)
            else:
                nn.init.ones_(parameter)


def units(config: LLaDAConfig) -> tuple[Unit, ...]:
    """Costs are of one sequence of max_sequence_length tokens; the head is no residual branch and no unit."""
    n, d, hidden = config.max_sequence_length, config.d_model, config.mlp_hidden_size
    attention_flops = 2 * n * d * 2 * (d + config.n_kv_heads * config.head_dim) + 4 * n * n * d
    mlp_flops = 2 * n * d * 3 * hidden
    result = []
    for i in range(config.n_layers):
        block = f"model.transformer.blocks.{i}"
        projections = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "attn_out"}
        attention = Component(
            "attention",
            {role: Matrix.whole(f"{block}.{layer}.weight") for role, layer in projections.items()},
            head_dim=config.head_dim,
        )
        mlp = Component(
            "mlp",
            {
                "w1": Matrix.whole(f"{block}.ff_proj.weight", f"{block}.up_proj.weight"),
                "w2": Matrix.whole(f"{block}.ff_out.weight"),
            },
        )
        result.append(Unit(f"blocks.{i}.attn", (attention,), attention_flops))
        result.append(Unit(f"blocks.{i}.mlp", (mlp,), mlp_flops))
    return tuple(result)


def infer_config(shapes: Mapping[str, tuple[int, ...]]) -> LLaDAConfig:
    raise ConfigError(
        "n_heads, rope_theta and the special tokens cannot be told from the tensors; "
        "put the model's config.json beside the file"
    )


ARCHITECTURE = Architecture(
    name="llada",
    title="LLaDA: masked diffusion language model",
    config=LLaDAConfig,
    published="LLaDA-8B",
    network=LLaDA,
    units=units,
    infer_config=infer_config,
    signatures=("model.transformer.wte.weight",),
    asks_for="prompt",
    theory="direct",
    held="attention and MLP updates",
    live="residual stream, embeddings, final norm and head",
    tested_with="tiny-llada; an independent float64 forward; LLaDA-8B's shapes",
    guidance=0.0,
    held_time=0.2,  # keys and values of all positions, and everything at some
    read_config=from_published,
)
