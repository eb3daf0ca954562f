"""What masked diffusion language models share: the layers, the forward pass and the list of units.

A family names its layers as its published checkpoints do, and maps them to the names used here. Both residual
additions of a block go through the seam. There is no timestep: the number of masks left shows the network how far the
generation is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tenuto.models.architecture import ConfigError
from tenuto.models.attention import attention
from tenuto.runtime.compilation import at_once, branch_function, compiling, plainly
from tenuto.runtime.keys import Keys
from tenuto.runtime.positions import places_of, take
from tenuto.runtime.residual import Deferred, Residual, plain
from tenuto.scoring.units import Component, Matrix, Unit

Memory = tuple[Keys, Tensor | None] | None


class LanguageConfig(Protocol):
    """The fields of a family's config that the layers and the sampler read, under shared names."""

    @property
    def d_model(self) -> int: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def n_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def mlp_hidden_size(self) -> int: ...
    @property
    def embedding_size(self) -> int: ...
    @property
    def max_sequence_length(self) -> int: ...
    @property
    def rope_theta(self) -> float: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def mask_token_id(self) -> int: ...
    @property
    def eos_token_id(self) -> int: ...


def check_language_config(config: LanguageConfig, own_names: Mapping[str, str] | None = None) -> None:
    """Refuse values that no network of this kind can have. Errors use the config's own names."""

    def called(name: str) -> str:
        return (own_names or {}).get(name, name)

    for name in ("d_model", "n_layers", "n_heads", "n_kv_heads", "mlp_hidden_size", "max_sequence_length"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{called(name)} must be at least 1, not {getattr(config, name)}")
    if config.d_model % (2 * config.n_heads):
        raise ConfigError(
            f"{called('d_model')} {config.d_model} does not give each of {config.n_heads} heads an even width"
        )
    if config.n_heads % config.n_kv_heads:
        heads, shared = called("n_heads"), called("n_kv_heads")
        raise ConfigError(f"{heads} {config.n_heads} is not a multiple of {shared} {config.n_kv_heads}")
    for name in ("mask_token_id", "eos_token_id"):
        if not 0 <= getattr(config, name) < config.embedding_size:
            raise ConfigError(f"{name} {getattr(config, name)} is none of the {config.embedding_size} tokens")
    if config.mask_token_id == config.eos_token_id:
        raise ConfigError(f"mask_token_id and eos_token_id are both {config.mask_token_id}")
    if not (config.rope_theta > 0 and config.rms_norm_eps > 0):
        raise ConfigError("rope_theta and rms_norm_eps must be positive")


def own_fields(
    config: type[Any], values: Mapping[str, Any], implemented: Mapping[str, tuple[Any, ...]], without_effect: str
) -> dict[str, Any]:
    """Select a config class's fields from a published config.json, or raise an error naming what is not implemented."""
    names = {field.name for field in fields(config)}
    known = names.union(implemented, without_effect.split())
    if unknown := [key for key in values if key not in known and not key.startswith("_")]:
        raise ConfigError(f"it has unknown argument(s) {', '.join(unknown)}")
    for key, accepted in implemented.items():
        if key in values and values[key] not in accepted:
            raise ConfigError(f"{key} is {values[key]!r}, but only {accepted[0]!r} is implemented")
    return {key: value for key, value in values.items() if key in names}


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


class LanguageBlock(nn.Module):
    """Attention to all tokens, earlier and later, and a SwiGLU MLP; each has a norm before it.

    A family provides these layers, as attributes or properties: attn_norm, q_proj, k_proj, v_proj and attn_out;
    ff_norm, ff_proj (the gate), up_proj and ff_out.
    """

    attn_norm: Any
    q_proj: Any
    k_proj: Any
    v_proj: Any
    attn_out: Any
    ff_norm: Any
    ff_proj: Any
    up_proj: Any
    ff_out: Any
    qkv: Tensor | None
    qkv_bias: Tensor | None
    gate_up: Tensor | None

    def __init__(self, name: str, config: LanguageConfig) -> None:
        super().__init__()
        self.name, self.head_dim = name, config.head_dim
        self.shared = config.n_heads // config.n_kv_heads  # query heads per key head
        # What `fuse` makes: the matrices of q, k and v as one, and those of the gate and of the other input of the MLP.
        for joined in ("qkv", "qkv_bias", "gate_up"):
            self.register_buffer(joined, None, persistent=False)

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
        """Attention of every token, or of the tokens in rows [B, P], to all tokens."""
        x = self.attn_norm(x)
        asking = x if rows is None else take(x, rows)
        projected = (self.q_proj(asking), self.k_proj(x), self.v_proj(x))
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for y in projected)  # [B, heads, N, d_h]
        k = rotate(k, cosines, sines)
        if rows is not None:
            cosines, sines = (take(a[:, 0].expand(len(rows), -1, -1), rows)[:, None] for a in (cosines, sines))
        return self._combined(rotate(q, cosines, sines), k, v, mask)

    def remember(
        self, x: Tensor, cosines: Tensor, sines: Tensor, mask: Tensor | None, keys: Keys, rows: Tensor | None
    ) -> Tensor:
        """Attention with a KV cache. If rows are given, x holds only these tokens; they attend to the whole cache."""
        q, k, v = at_once(self.project, x, cosines, sines)
        if rows is None:
            keys.write(self.name, k, v)
        else:
            k, v = keys.update(self.name, rows, k, v)
        return self.merge(self.seen(q, k, v, mask))

    @branch_function
    def project(self, x: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.projected(x, cosines, sines)

    @branch_function
    def merge(self, seen: Tensor) -> Tensor:
        return self.merged(seen)

    @branch_function
    def feed(self, x: Tensor) -> Tensor:
        return self.fed(x)

    def projected(self, x: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [B, heads, N, d_h] each."""
        x = self.attn_norm(x)
        if self.qkv is None:
            projected = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        else:
            sizes = [layer.weight.shape[0] for layer in (self.q_proj, self.k_proj, self.v_proj)]
            projected = F.linear(x, self.qkv, self.qkv_bias).split(sizes, dim=-1)
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for y in projected)
        return rotate(q, cosines, sines), rotate(k, cosines, sines), v

    def merged(self, seen: Tensor) -> Tensor:
        """What all heads saw, [B, heads, P, d_h], as an update. Its shapes do not depend on the number of keys."""
        merged: Tensor = self.attn_out(seen.transpose(1, 2).flatten(2))
        return merged

    def _combined(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        found: Tensor = self.attn_out(self.seen(q, k, v, mask).transpose(1, 2).flatten(2))
        return found

    def seen(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        # Heads that share keys ask together: to the attention, they are more queries of one head.
        asked = q.unflatten(1, (-1, self.shared)).flatten(2, 3)
        return attention(asked, k, v, mask).unflatten(2, (self.shared, -1)).flatten(1, 2)

    def fed(self, x: Tensor) -> Tensor:
        x = self.ff_norm(x)
        if self.gate_up is None:
            gate, up = self.ff_proj(x), self.up_proj(x)
        else:
            gate, up = F.linear(x, self.gate_up).chunk(2, dim=-1)
        fed: Tensor = self.ff_out(F.silu(gate) * up)
        return fed

    def fuse(self) -> None:
        """Join matrices that read the same input, so that one large product replaces several small ones.

        The layers' own weights become parts of the joined matrices: nothing is stored twice, and names stay.
        """
        projections = [self.q_proj, self.k_proj, self.v_proj]
        self.qkv = _joined([layer.weight for layer in projections], self.qkv)
        if projections[0].bias is not None:
            self.qkv_bias = _joined([layer.bias for layer in projections], self.qkv_bias)
        self.gate_up = _joined([self.ff_proj.weight, self.up_proj.weight], self.gate_up)

    def check_joined(self) -> None:
        """Forget joined matrices that the layers' weights no longer lie in: weights were replaced, or copied."""
        for joined, layer in ((self.qkv, self.q_proj), (self.gate_up, self.ff_proj)):
            with suppress(RuntimeError):  # a tensor without values has no address
                if joined is not None and joined.data_ptr() != layer.weight.data_ptr():
                    return self.separate()
        return None

    def separate(self) -> None:
        """Forget the joined matrices; the layers keep their weights."""
        self.qkv = self.qkv_bias = self.gate_up = None


def _joined(parts: list[nn.Parameter], joined: Tensor | None) -> Tensor:
    """The parts as one tensor, in whose memory each part then lies. If they lie there already: `joined` itself."""
    if joined is not None:
        ends = accumulate((part.numel() for part in parts), initial=0)
        places = [joined.data_ptr() + end * joined.itemsize for end in ends]
        if [part.data_ptr() for part in parts] == places[:-1]:
            return joined
    with torch.no_grad(), torch.inference_mode(False):
        joined = torch.cat([part.detach() for part in parts])
        for part, lies in zip(parts, joined.split([len(part) for part in parts]), strict=True):
            part.data = lies
    return joined


def cached_step(
    h: Tensor, blocks: Sequence[LanguageBlock], rope: Deferred, mask: Tensor | None, keys: Keys, rows: Tensor
) -> Tensor:
    """All blocks at some tokens, the KV cache supplying the others: what `LanguageBlock.forward` computes.

    If no unit is held, nothing needs to come between two blocks. So everything from one attention to the next is one
    function: compiled, it runs in half as many kernels, and the cache is written by the kernel that computes the keys.
    """
    first, last = blocks[0], blocks[-1]
    q = enter(first, h, rope[0], rope[1], *keys.of(first.name), rows)
    for block, after in pairwise(blocks):
        seen = block.seen(q, *keys.of(block.name), mask)
        h, q = cross(block, after, h, seen, rope[0], rope[1], *keys.of(after.name), rows)
    left: Tensor = leave(last, h, last.seen(q, *keys.of(last.name), mask))
    return left


@branch_function
def enter(
    block: LanguageBlock, h: Tensor, cosines: Tensor, sines: Tensor, all_keys: Tensor, all_values: Tensor, rows: Tensor
) -> Tensor:
    """The queries of a block; its keys and values are written into the cache."""
    return _entered(block, h, cosines, sines, all_keys, all_values, rows)


@branch_function
def cross(block: LanguageBlock, after: LanguageBlock, h: Tensor, seen: Tensor, *entering: Tensor) -> tuple[Tensor, ...]:
    """From what a block's attention saw to the stream behind the block and the next block's queries."""
    h = _left(block, h, seen)
    return h, _entered(after, h, *entering)


@branch_function
def leave(block: LanguageBlock, h: Tensor, seen: Tensor) -> Tensor:
    return _left(block, h, seen)


def _entered(
    block: LanguageBlock, h: Tensor, cosines: Tensor, sines: Tensor, all_keys: Tensor, all_values: Tensor, rows: Tensor
) -> Tensor:
    q, k, v = block.projected(h, cosines, sines)
    row = torch.arange(len(rows), device=rows.device)[:, None, None]
    head = torch.arange(k.shape[1], device=rows.device)[None, :, None]
    all_keys.index_put_((row, head, rows[:, None, :]), k.to(all_keys.dtype))
    all_values.index_put_((row, head, rows[:, None, :]), v.to(all_values.dtype))
    return q


def _left(block: LanguageBlock, h: Tensor, seen: Tensor) -> Tensor:
    h = h + block.merged(seen)
    return h + block.fed(h)


def _given(rows: Tensor | None) -> tuple[Tensor, ...]:
    return () if rows is None else (rows,)


class LanguageNetwork(nn.Module):
    """Tokens in, predictions of tokens out."""

    shift: ClassVar[int] = 0  # a token is predicted this many positions before it
    config: LanguageConfig

    def parts(self) -> tuple[Any, Iterable[Any], Any, Any]:
        """The embedding, the blocks, the last norm and the head."""
        raise NotImplementedError

    def forward(
        self,
        tokens: Tensor,
        residual: Residual = plain,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        memory: Memory = None,
        read: Callable[[Tensor], Any] | None = None,
    ) -> Any:
        """tokens [B, N] -> logits [B, N, embedding_size], or [B, P, embedding_size] for P positions.

        attention_mask  bool [B, N], True at real tokens; needed for prompts padded on the left. None: all are real
        positions       int [P] or [B, P]: the positions to predict, the same in all rows or one list per row. None: all
        memory          (keys, rows): the KV cache and the tokens to compute. If rows [B, R] are given, only these
                        tokens are computed, and the cache supplies the others. The rows must include every position at
                        which a prediction is made
        read            what to make of the logits; its result is returned instead of them
        """
        embedding, blocks, norm, head = self.parts()
        for block in blocks:
            block.check_joined()
        rows = None if memory is None else memory[1]
        if attention_mask is None:
            mask, places = None, torch.arange(tokens.shape[1], device=tokens.device)[None]
        else:
            mask = attention_mask[:, None, None, :]  # every query attends to the same real keys
            places = (attention_mask.cumsum(1) - 1).clamp(min=0)  # counted from each row's first real token
        made = self._made_at(positions, tokens, attention_mask, rows)
        if rows is not None:
            tokens, places = tokens.gather(1, rows), places.expand(len(rows), -1).gather(1, rows)
            made = None if made is None else places_of(made, rows)
        rope = Deferred(lambda: rotary_angles(places, self.config.head_dim, self.config.rope_theta))
        h = embedding(tokens)
        if memory is not None and rows is not None and residual in (plain, plainly):
            h = cached_step(h, list(blocks), rope, mask, memory[0], rows)
        else:
            # With a KV cache, full steps are rare, and each length of a prompt would be compiled for itself.
            with compiling(False) if memory is not None else nullcontext():
                for block in blocks:
                    h = block(h, rope, mask, residual, memory)
        logits: Tensor = head(norm(h if made is None else take(h, made)))
        return logits if read is None else read(logits)

    def fuse(self) -> None:
        """Join the matrices that read the same input, block by block. Does nothing if they are joined already."""
        for block in self.parts()[1]:
            block.fuse()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        for block in self.parts()[1]:  # moved or converted, the weights would no longer lie in the joined matrices
            block.separate()
        return super()._apply(fn, recurse)

    def _made_at(
        self, positions: Tensor | None, tokens: Tensor, attention_mask: Tensor | None, rows: Tensor | None
    ) -> Tensor | None:
        """The positions at which predictions are made, [B, P]; None: all tokens, each at its own position."""
        if positions is None and self.shift:
            positions = torch.arange(tokens.shape[1], device=tokens.device) if rows is None else rows
        if positions is None:
            return None
        if positions.dim() == 1:
            positions = positions.expand(len(tokens), -1)
        if not self.shift:
            return positions
        # A row's first token has no token before it, so it is predicted at its own position.
        if attention_mask is None:
            return (positions - self.shift).clamp(min=0)
        return torch.maximum(positions - self.shift, attention_mask.to(torch.uint8).argmax(1, keepdim=True))


def block_units(config: LanguageConfig, blocks: str, tensors: str, layers: Mapping[str, str]) -> tuple[Unit, ...]:
    """The units of all blocks: each block's attention and its MLP. The head is no residual branch and no unit.

    Costs are for one sequence of max_sequence_length tokens.

    blocks   the prefix of unit names: `{blocks}.0.attn`, `{blocks}.0.mlp`, …
    tensors  the prefix of the blocks' tensors in a checkpoint
    layers   the names of a block's layers in a checkpoint, by role: q, k, v, o, gate, up, down
    """
    n, d, hidden = config.max_sequence_length, config.d_model, config.mlp_hidden_size
    attention_flops = 2 * n * d * 2 * (d + config.n_kv_heads * config.head_dim) + 4 * n * n * d
    mlp_flops = 2 * n * d * 3 * hidden
    result = []
    for i in range(config.n_layers):
        key = {role: f"{tensors}.{i}.{layer}.weight" for role, layer in layers.items()}
        matrices = {role: Matrix.whole(key[role]) for role in "qkvo"}
        attention = Component("attention", matrices, head_dim=config.head_dim)
        mlp = Component("mlp", {"w1": Matrix.whole(key["gate"], key["up"]), "w2": Matrix.whole(key["down"])})
        result.append(Unit(f"{blocks}.{i}.attn", (attention,), attention_flops))
        result.append(Unit(f"{blocks}.{i}.mlp", (mlp,), mlp_flops))
    return tuple(result)
