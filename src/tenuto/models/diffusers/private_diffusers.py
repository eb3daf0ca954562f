"""The private names of diffusers and accelerate that we use. If an upgrade moves one, only this file breaks."""

from typing import Any

from diffusers.models.attention import _chunked_feed_forward
from torch import Tensor, nn

FORWARD_BEHIND_HOOK = "_old_forward"  # where accelerate keeps the forward that its hook replaced


def has_hooks(block: nn.Module) -> bool:
    """Whether diffusers has hooks on a block: group offloading, layerwise casting, a cache."""
    return hasattr(block, "_diffusers_hook")


def run_feed_forward(block: Any, layers: nn.Module, x: Tensor) -> Tensor:
    """A block's feed-forward, in chunks if the block has a chunk size."""
    if getattr(block, "_chunk_size", None) is None:
        out: Tensor = layers(x)
        return out
    return _chunked_feed_forward(layers, x, block._chunk_dim, block._chunk_size)


def timesteps_told(pipeline: Any) -> int | None:
    """The number of timesteps that a pipeline states for its loop; most state it just before the loop begins."""
    told = vars(pipeline).get("_num_timesteps")
    return told if isinstance(told, int) else None
