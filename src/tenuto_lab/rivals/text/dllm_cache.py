"""dLLM-Cache (Liu et al., github.com/maomaocun/dLLM-cache), on our networks.

Prompt and answer are refreshed at periods of their own. In between, every layer projects the values of all tokens of
the answer, and recomputes the tokens whose values turned most from those kept: their queries, keys, attention and MLP.
All other tokens add the updates that they added last. The first layer is always computed in full, as published.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tenuto.models.language import LanguageNetwork
from tenuto.models.language_block import LanguageBlock, rotary_angles, rotate
from tenuto.runtime.positions import put_, take


@dataclass
class DLLMCache:
    """One generation's caches; call it once for each evaluation."""

    prompt_period: int
    answer_period: int
    ratio: float  # of the answer's tokens that are recomputed in between
    step: int = 0
    kept: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def __call__(
        self, network: LanguageNetwork, tokens: Tensor, width: int, real: Tensor | None, asked: Tensor, read: Any
    ) -> tuple[Any, float]:
        """What `read` makes of the logits at the asked positions [B, P], and the share of the work that was done.

        width  of the prompts
        """
        embedding, blocks, norm, head = network.parts()
        prompt, answer = self.step % self.prompt_period == 0, self.step % self.answer_period == 0
        self.step += 1
        mask = None if real is None else real[:, None, None, :]
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        if real is not None:
            places = (real.cumsum(1) - 1).clamp(min=0)
        rope = rotary_angles(places, network.config.head_dim, network.config.rope_theta)
        h, shares = embedding(tokens), []
        for layer, block in enumerate(blocks):
            kept = self.kept.setdefault(block.name, {})
            h, share = self._layer(block, h, kept, rope, mask, width, prompt or not layer, answer or not layer)
            shares.append(share)
        return read(head(norm(take(h, asked)))), sum(shares) / len(shares)

    def drop(self, left: Tensor) -> None:
        """Keep only the rows that are left."""
        self.kept = {name: {what: one[left] for what, one in kept.items()} for name, kept in self.kept.items()}

    def _layer(
        self,
        block: LanguageBlock,
        h: Tensor,
        kept: dict[str, Tensor],
        rope: tuple[Tensor, Tensor],
        mask: Tensor | None,
        width: int,
        prompt: bool,
        answer: bool,
    ) -> tuple[Tensor, float]:
        size, length = h.shape[:2]
        everywhere = torch.arange(length, device=h.device).expand(size, -1)
        x = block.attn_norm(h)
        share = 0.0
        if answer:
            chosen = everywhere[:, width:]
        else:
            values = block.v_proj(x[:, width:])
            alike = F.cosine_similarity(values, kept["v"][:, width:], dim=-1)
            chosen = width + alike.topk(int((length - width) * self.ratio), largest=False).indices
            kept["v"][:, width:] = values
            projections = sum(layer.weight.numel() for layer in (block.q_proj, block.k_proj, block.v_proj))
            rest = sum(one.weight.numel() for one in (block.attn_out, block.ff_proj, block.up_proj, block.ff_out))
            share = (length - width - chosen.shape[1]) / length * block.v_proj.weight.numel() / (projections + rest)
        if prompt:
            chosen = torch.cat([everywhere[:, :width], chosen], dim=1)
        whole = prompt and answer
        asking = x if whole else take(x, chosen)
        q, k, v = block.q_proj(asking), block.k_proj(asking), block.v_proj(asking)
        for name, value in (("k", k), ("v", v)):
            kept[name] = value.clone() if whole else put_(kept[name], chosen, value)
        q, keys, values = (one.unflatten(-1, (-1, block.head_dim)).transpose(1, 2) for one in (q, kept["k"], kept["v"]))
        turns = tuple(take(a[:, 0].expand(size, -1, -1), chosen)[:, None] for a in rope)
        q = rotate(q, *turns)
        seen = block.seen(q, rotate(keys, *rope), values, mask)
        update = block.merged(seen)
        kept["attention"] = update if whole else put_(kept["attention"], chosen, update)
        h = h + kept["attention"]
        fed = block.fed(h if whole else take(h, chosen))
        kept["mlp"] = fed if whole else put_(kept["mlp"], chosen, fed)
        return h + kept["mlp"], share + chosen.shape[1] / length
