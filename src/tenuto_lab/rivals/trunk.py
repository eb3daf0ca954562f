"""A transformer in three parts: the stem makes tokens of the sample, the blocks change them, the head makes the output.

TeaCache, MagCache and SeaCache hold what all blocks together add to the tokens, so they need the tokens before the
blocks and a head for other tokens. Full evaluations are the network's own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tenuto.models.dit import DiT, modulate
from tenuto.models.layers import timestep_embedding, unpatchify
from tenuto.runtime.residual import Branch, plain
from tenuto_lab.networks.uvit import UViT


@dataclass(frozen=True)
class Stem:
    """What one evaluation computes before the blocks.

    tokens    [B, n, D]
    attended  [B, n, D]: the input of the first block's attention, normalised, and modulated by the time where it is
    pictured  the number of tokens, the last ones, that are patches of the picture in rows
    head      makes the network's output of the tokens behind the blocks
    """

    tokens: Tensor
    attended: Tensor
    pictured: int
    head: Callable[[Tensor], Tensor]


def why_not(network: Any) -> str | None:
    """Why the network has no such parts; None if it has."""
    if isinstance(network, DiT | UViT):
        return None
    kind = type(network).__name__.removeprefix("Attached")
    return f"the {kind} has no stream of tokens through all of its blocks whose change could be held"


def stem_of(network: Any, x: Tensor, t: Tensor, y: Tensor) -> Stem:
    return _dit(network, x, t, y) if isinstance(network, DiT) else _uvit(network, x, t, y)


def _dit(network: DiT, x: Tensor, t: Tensor, y: Tensor) -> Stem:
    conditioning = network.t_embedder(t) + network.y_embedder(y)
    tokens = network.x_embedder(x) + network.pos_embed
    first = network.layers[0]
    shift, scale, *_ = first.adaLN_modulation(conditioning).unsqueeze(1).chunk(6, dim=-1)

    def head(after: Tensor) -> Tensor:
        both = network.final_layer.adaLN_modulation(conditioning).unsqueeze(1).chunk(2, dim=-1)
        return unpatchify(network.final_layer(after, both), network.config.patch_size)

    return Stem(tokens, modulate(first.norm1(tokens), shift, scale), tokens.shape[1], head)


def _uvit(network: UViT, x: Tensor, t: Tensor, y: Tensor) -> Stem:
    config = network.config
    parts = [network.time_embed(timestep_embedding(t, config.embed_dim).to(x.dtype))[:, None], network.patch_embed(x)]
    if config.num_classes > 0:
        parts.insert(0, network.label_emb(y)[:, None])
    tokens = torch.cat(parts, dim=1) + network.pos_embed

    def head(after: Tensor) -> Tensor:
        patches = network.decoder_pred(network.norm(after))[:, config.extras :]
        return network.final_layer(unpatchify(patches, config.patch_size))  # type: ignore[no-any-return]

    first: Any = network.in_blocks[0]
    return Stem(tokens, first.norm1(tokens), tokens.shape[1] - config.extras, head)


def evaluated(network: Any, x: Tensor, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The network's output, and its tokens behind the last block."""
    last: list[Tensor] = []
    output = network(x, t, y, residual=partial(_watched, last))
    return output, last[0]


def _watched(last: list[Tensor], unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
    last[:] = [plain(unit, h, branch, gate)]
    return last[0]
