"""Attention of queries to keys, also where few queries meet many keys.

A GPU computes attention head by head and, within a head, query by query in parallel. A block of a single text has few
heads and few queries, so most of the GPU would wait while a few processors read all keys one after the other. There the
keys are divided into parts, the parts are attended to at once, and their results are combined.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

QUERIES = 64  # that one processor of a GPU takes at once
PARTS_OF = 64  # keys of a part, at least
DIVIDED = True  # whether keys are divided into parts at all; for measurements


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """[B, heads, P, d], [B, heads, N, d] twice, and which keys are real, bool [B, 1, 1, N]: [B, heads, P, d]."""
    parts = parts_for(q, k)
    if parts == 1:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return attention_in_parts(q, k, v, mask, parts)


def parts_for(q: Tensor, k: Tensor) -> int:
    """Into how many parts the keys of a single text are divided: as many as keep a GPU busy."""
    if not DIVIDED or len(q) > 1 or not q.is_cuda or q.dtype not in (torch.bfloat16, torch.float16):
        return 1
    at_once = q.shape[1] * -(-q.shape[2] // QUERIES)
    wanted = torch.cuda.get_device_properties(q.device).multi_processor_count // at_once
    return max((parts for parts in range(1, wanted + 1) if k.shape[2] % (parts * PARTS_OF) == 0), default=1)


def attention_in_parts(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, parts: int) -> Tensor:
    """The same attention of a single text, part by part: softmax over all keys is a weighted mean of those of parts."""
    k, v = (one[0].unflatten(1, (parts, -1)).transpose(0, 1) for one in (k, v))  # [parts, heads, N / parts, d]
    asked = q.expand(parts, -1, -1, -1)
    bias, empty = None, None
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, -torch.inf)
        bias = bias.view(parts, 1, 1, -1).expand(-1, q.shape[1], q.shape[2], -1)
        empty = ~mask.view(parts, 1, 1, -1).any(-1)  # [parts, 1, 1]: all keys of the part are padding
    found, log_sums = _attended(asked, k, v, bias)
    if empty is not None:  # what the kernels return there is not defined
        found, log_sums = found.masked_fill(empty[..., None], 0.0), log_sums.masked_fill(empty, -torch.inf)
    weights = log_sums.float().softmax(0)[..., None]
    return (found.float() * weights).sum(0, keepdim=True).to(q.dtype)


def _attended(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention, and the log of each query's sum of exponentials: [parts, heads, P, d], [parts, heads, P]."""
    if not q.is_cuda:
        found, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=bias)
    elif bias is None:
        found, log_sums = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[:2]
    else:
        found, log_sums = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, True)[:2]
    return found, log_sums[..., : q.shape[2]]  # some kernels round the number of queries up
