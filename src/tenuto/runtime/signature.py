"""The signature of inputs: all but the values of their tensors. Inputs of one signature share one plan or graph."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tenuto.runtime.private_torch import TreeSpec

Signature = tuple[Any, ...]


def signature_of(leaves: Sequence[Any], spec: TreeSpec) -> Signature:
    """The shapes, strides, dtypes and devices of all tensors, the values of all other inputs, and autocast's state."""
    autocast = (torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"))
    described = (
        (tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else ("value", leaf)
        for leaf in leaves
    )
    return (spec, autocast, *described)


def hashable(signature: Signature) -> bool:
    try:
        hash(signature)
    except TypeError:
        return False
    return True
