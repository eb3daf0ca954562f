"""Where the units of diffusers' denoisers are: the blocks that hold them, and what each unit is made of and costs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from tenuto.scheduling.units import Component, Matrix, Unit

TEXT_TOKENS = 77  # of CLIP's prompts; the cost of cross-attention assumes as many

PROJECTIONS = ("to_q", "to_k", "to_v", "to_out.0")
ADDED_PROJECTIONS = ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")  # the text's, in joint attention

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Site:
    """One block that holds units, and its forward, written against the seam."""

    path: str
    name: str  # the prefix of its units' names
    block: nn.Module
    units: tuple[Unit, ...]  # empty: a live part, rewritten only to run better
    forward: Forward  # (block, name, residual, *the block's own arguments)
    method: str = "forward"  # the method that `forward` replaces


def attention_unit(
    name: str,
    path: str,
    *,
    width: int,
    inner: int,
    heads: int,
    tokens: int,
    context: int | None = None,
    context_width: int | None = None,
    joint: int = 0,
    projections: tuple[str, ...] = PROJECTIONS,
) -> Unit:
    """One attention.

    width, tokens           channels and positions of the stream that the attention is added to
    context, context_width  positions and channels of the input to keys and values; None: the stream itself
    joint                   positions of another stream, whose keys and values are also read
    """
    matrices = {role: Matrix.whole(f"{path}.{part}.weight") for role, part in zip("qkvo", projections, strict=True)}
    read = tokens if context is None else context
    flops = 2 * tokens * width * inner * 2 + 2 * read * (context_width or width) * inner * 2
    kind = "attention" if context is None else "cross_attention"
    component = Component(kind, matrices, head_dim=inner // heads)  # type: ignore[arg-type]
    return Unit(name, (component,), float(flops + 4 * tokens * (read + joint) * inner))


def mlp_unit(name: str, path: str, feed_forward: Any, tokens: int) -> Unit:
    first, last = feed_forward.net[0].proj, feed_forward.net[2]
    matrices = {  # if the MLP is gated, w1 is value and gate stacked, as the score expects
        "w1": Matrix.whole(f"{path}.net.0.proj.weight"),
        "w2": Matrix.whole(f"{path}.net.2.weight"),
    }
    flops = 2 * tokens * (first.in_features * first.out_features + last.in_features * last.out_features)
    return Unit(name, (Component("mlp", matrices),), float(flops))
