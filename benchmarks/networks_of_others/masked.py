"""Masked language models of others, with the seam of this project: residual branches can be held, and keys kept.

A loader describes its network by parts: how tokens are embedded, the layers of each block, how positions rotate queries
and keys, and the head. `MaskedNetwork` joins them; it takes the arguments that networks of ours take.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tenuto.runtime.positions import places_of, take
from tenuto.runtime.residual import Residual, plain
from tenuto.scheduling.units import Unit

Rotate = Callable[[Tensor, Tensor], Tensor]  # (queries or keys [B, heads, N, d_h], places [B or 1, N])


@dataclass(frozen=True)
class MaskedConfig:
    """What the sampler reads of a network's config."""

    embedding_size: int
    max_sequence_length: int
    mask_token_id: int
    eos_token_id: int
    d_model: int
    n_layers: int
    n_heads: int
    mlp_hidden_size: int

    @property
    def n_kv_heads(self) -> int:
        return self.n_heads

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads


@dataclass(frozen=True)
class MaskedCase:
    """A masked language model, and what it is asked to continue."""

    name: str
    about: str
    source: str  # where it comes from, and its licence
    network: "MaskedNetwork"
    prompts: Callable[[int], list[list[int]]]  # so many, all of one length
    length: int = 64  # tokens to write after each prompt
    blocks: int = 4  # in which they are written

    @property
    def units(self) -> tuple[Unit, ...]:
        names = (f"{block.name}.{kind}" for block in self.network.blocks for kind in ("attn", "mlp"))
        return tuple(Unit(name, (), 1.0) for name in names)


class MaskedBlock(nn.Module):
    """Attention to all tokens and an MLP. Norms stand before the branches, or after the additions."""

    def __init__(
        self, name: str, attention: Sequence[nn.Module], mlp: nn.Module, heads: int, rotate: Rotate | None = None
    ) -> None:
        """attention: a norm, or nothing, then the layers for queries, keys, values and the output."""
        super().__init__()
        self.name, self.heads, self.rotate = name, heads, rotate
        self.norm, self.query, self.key, self.value, self.out = attention
        self.mlp = mlp  # with its norm, if one stands before it
        self.after_attention: nn.Module = nn.Identity()
        self.after_mlp: nn.Module = nn.Identity()

    def forward(
        self, x: Tensor, places: Tensor, mask: Tensor | None, residual: Residual, memory: Any, all_places: Tensor
    ) -> Tensor:
        if memory is None:

            def branch(rows: Tensor | None = None) -> Tensor:
                return self.attend(x, all_places, mask, rows)
        else:

            def branch(rows: Tensor | None = None) -> Tensor:
                return self.remember(x, places, mask, *memory)

        h = self.after_attention(residual(f"{self.name}.attn", x, branch))
        fed = residual(f"{self.name}.mlp", h, lambda rows=None: self.mlp(h if rows is None else take(h, rows)))
        return self.after_mlp(fed)  # type: ignore[no-any-return]

    def attend(self, x: Tensor, places: Tensor, mask: Tensor | None, rows: Tensor | None) -> Tensor:
        """Attention of all tokens, or of those in rows [B, P], to all tokens."""
        x = self.norm(x)
        asking, asked_at = x, places
        if rows is not None:
            asking, asked_at = take(x, rows), places.expand(len(rows), -1).gather(1, rows)
        q, k, v = self._split(asking, self.query), self._split(x, self.key), self._split(x, self.value)
        return self._combined(self._rotated(q, asked_at), self._rotated(k, places), v, mask)

    def remember(self, x: Tensor, places: Tensor, mask: Tensor | None, keys: Any, rows: Tensor | None) -> Tensor:
        """Attention with a KV cache. If rows are given, x holds only these tokens."""
        x = self.norm(x)
        q, k, v = (self._split(x, layer) for layer in (self.query, self.key, self.value))
        q, k = self._rotated(q, places), self._rotated(k, places)
        if rows is None:
            keys.write(self.name, k, v)
        else:
            k, v = keys.update(self.name, rows, k, v)
        return self._combined(q, k, v, mask)

    def _split(self, x: Tensor, layer: nn.Module) -> Tensor:
        return layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # type: ignore[no-any-return]

    def _rotated(self, x: Tensor, places: Tensor) -> Tensor:
        return x if self.rotate is None else self.rotate(x, places)

    def _combined(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(found.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class MaskedNetwork(nn.Module):
    """Tokens in, predictions of tokens out; the arguments are those of tenuto.models.language.LanguageNetwork."""

    shift = 0

    def __init__(
        self, config: MaskedConfig, embedding: nn.Module, blocks: Sequence[MaskedBlock], head: nn.Module
    ) -> None:
        """embedding: (tokens, places, all tokens) -> stream. head: with the last norm, stream -> logits."""
        super().__init__()
        self.config, self.embedding, self.head = config, embedding, head
        self.blocks = nn.ModuleList(blocks)

    def forward(
        self,
        tokens: Tensor,
        residual: Residual = plain,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        memory: Any = None,
        read: Callable[[Tensor], Any] | None = None,
    ) -> Any:
        rows = None if memory is None else memory[1]
        mask, places = None, torch.arange(tokens.shape[1], device=tokens.device)[None]
        if attention_mask is not None:
            mask, places = attention_mask[:, None, None, :], (attention_mask.cumsum(1) - 1).clamp(min=0)
        made = None if positions is None else positions.expand(len(tokens), -1)
        seen, all_places = tokens, places
        if rows is not None:
            seen, places = tokens.gather(1, rows), places.expand(len(rows), -1).gather(1, rows)
            made = None if made is None else places_of(made, rows)
        h = self.embedding(seen, places, tokens)
        for block in self.blocks:
            h = block(h, places, mask, residual, memory, all_places)
        logits = self.head(h if made is None else take(h, made))
        return logits if read is None else read(logits)

    def fuse(self) -> None:
        """Nothing is joined."""


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Channel i rotated with channel i + d_h / 2, by angles [B or 1, 1, N, d_h / 2]."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def angles(places: Tensor, width: int, base: float = 10_000.0) -> Tensor:
    """Rotary angles, [B or 1, N] -> [B or 1, 1, N, width / 2]."""
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=places.device) / width
    return places[:, None, :, None] * base**-exponents
