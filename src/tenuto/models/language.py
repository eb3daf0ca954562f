"""What masked diffusion language models share: the layers, the forward pass and the list of units.

A family names its layers as its published checkpoints do, and maps them to the names used here. Both residual
additions of a block go through the seam. There is no timestep: the number of masks left shows the network how far the
generation is.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import fields
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from tenuto.models.architecture import ConfigError
from tenuto.models.cached_step import cached_step
from tenuto.models.kernel_step import Packed, suits
from tenuto.models.language_block import Memory, rotary_angles
from tenuto.runtime.compilation import compiling, plainly
from tenuto.runtime.positions import places_of, take
from tenuto.runtime.residual import Deferred, Residual, plain
from tenuto.scheduling.units import Component, Matrix, Unit


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
        packed: tuple[Tensor, Tensor] | None = None,
    ) -> Any:
        """tokens [B, N] -> logits [B, N, embedding_size], or [B, P, embedding_size] for P positions.

        attention_mask  bool [B, N], True at real tokens; needed for prompts padded on the left. None: all are real
        positions       int [P] or [B, P]: the positions to predict, the same in all rows or one list per row. None: all
        memory          (keys, rows): the KV cache and the tokens to compute. If rows [B, R] are given, only these
                        tokens are computed, and the cache supplies the others. The rows must include every position at
                        which a prediction is made
        read            what to make of the logits; its result is returned instead of them
        packed          (slots, starts): which of the rows [B · R] matter, and where each text begins among them; the
                        others repeat one of these. A GPU computes only these, if the logits are read
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
        if packed is not None and rows is not None and read is not None and made is not None:
            wanted = Packed(*packed, rows, attention_mask)
            if suits(embedding.weight, list(blocks)):
                angles = rotary_angles(wanted.of(places)[None], self.config.head_dim, self.config.rope_theta)
                h = wanted.step(embedding(wanted.of(tokens)), list(blocks), norm, angles, memory[0])  # type: ignore[index]
                return tuple(wanted.spread(one, made) for one in read(head(h)))
        h = embedding(tokens)
        across = memory is not None and residual in (plain, plainly)  # nothing comes between two blocks
        if across and (rows is not None or suits(h, list(blocks))):
            h = cached_step(h, list(blocks), norm, rope, mask, memory[0], rows)  # type: ignore[index]
            h = h if made is None else take(h, made)
        else:
            # With a KV cache, full steps are rare, and each length of a prompt would be compiled for itself.
            with compiling(False) if memory is not None else nullcontext():
                for block in blocks:
                    h = block(h, rope, mask, residual, memory)
            h = norm(h if made is None else take(h, made))
        logits: Tensor = head(h)
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
