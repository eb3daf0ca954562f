"""The few layers that the vision transformers share, under the names their checkpoints give them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tenuto.runtime.private_torch import linear_gelu
from tenuto.scheduling.units import Component, Matrix


class PatchEmbed(nn.Module):
    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        # [B, C, H, W] -> [B, tokens, D]; contiguous, because later sums would inherit the transposed layout
        return self.proj(x).flatten(2).transpose(1, 2).contiguous()


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, heads, tokens, d_h]
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self._activated(x))

    def _activated(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() and x.is_cuda and self.approximate == "tanh" and x.dtype != torch.float32:
            # GELU in the matmul's epilogue rounds once less; the compiler would write the product out and read it again
            rows = linear_gelu(self.fc1.bias, x.flatten(0, -2), self.fc1.weight)
            return rows.unflatten(0, x.shape[:-1])
        return F.gelu(self.fc1(x), approximate=self.approximate)


def timestep_embedding(t: Tensor, width: int) -> Tensor:
    """[B] -> [B, width]: cosines, then sines, of t at geometrically spaced rates."""
    half = width // 2
    rates = torch.exp(-math.log(10_000) / half * torch.arange(half, dtype=torch.float32, device=t.device))
    angles = t.float()[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def unpatchify(x: Tensor, patch: int) -> Tensor:
    """[B, h·w, p·p·C] -> [B, C, h·p, w·p], for a square of patches."""
    side = math.isqrt(x.shape[1])
    x = x.unflatten(1, (side, side)).unflatten(-1, (patch, patch, -1))  # [B, h, w, p, q, C]
    return x.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


def attention_component(name: str, head_dim: int) -> Component:
    """How `Attention` is scored: its fused qkv split in three."""
    q, k, v = (Matrix.split(f"{name}.qkv.weight", i, 3) for i in range(3))
    return Component("attention", {"q": q, "k": k, "v": v, "o": Matrix.whole(f"{name}.proj.weight")}, head_dim)


def mlp_component(name: str) -> Component:
    """How `Mlp` is scored."""
    return Component("mlp", {"w1": Matrix.whole(f"{name}.fc1.weight"), "w2": Matrix.whole(f"{name}.fc2.weight")})


def attention_flops(tokens: int, width: int) -> float:
    """Four projections, and the two matrix products of attention."""
    return 8 * tokens * width**2 + 4 * tokens**2 * width


def mlp_flops(tokens: int, width: int, hidden: int) -> float:
    return 4 * tokens * width * hidden
