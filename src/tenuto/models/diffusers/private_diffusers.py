"""The names of diffusers and accelerate that are not public: an upgrade that moves one breaks this file alone."""

from typing import Any

from diffusers.models.attention import _chunked_feed_forward
from torch import Tensor, nn

FORWARD_BEHIND_HOOK = "_old_forward"  # where accelerate keeps a forward that its hook took the place of


def has_hooks(block: nn.Module) -> bool:
    """Whether diffusers has hooks on a block: group offloading, layerwise casting, a cache."""
    return hasattr(block, "_diffusers_hook")


def run_feed_forward(block: Any, layers: nn.Module, x: Tensor) -> Tensor:
    """A block's feed-forward, in chunks where the block was told so."""
    if getattr(block, "_chunk_size", None) is None:
        out: Tensor = layers(x)
        return out
    return _chunked_feed_forward(layers, x, block._chunk_dim, block._chunk_size)


def timesteps_told(pipeline: Any) -> int | None:
    """How many timesteps a pipeline says that its loop takes; most say so just before it begins."""
    told = vars(pipeline).get("_num_timesteps")
    return told if isinstance(told, int) else None
