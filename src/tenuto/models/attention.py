"""Attention of queries to keys, also where few queries meet many keys some of which are padding.

A GPU computes attention head by head and, within a head, query by query in parallel. A block of a single text has few
heads and few queries, so most of the GPU would wait while a few processors read all keys one after the other. torch's
kernel without a mask divides the keys by itself; its kernel with a mask does not. So many keys with a mask are divided
here, the parts are attended to at once, and their results are combined.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

QUERIES = 64  # that one processor of a GPU takes at once
PARTS_OF = 64  # keys of a part, at least
MANY = 2048  # keys; fewer are not divided, because combining the parts takes time too
DIVIDED = True  # whether keys are divided into parts at all; for measurements


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """[B, heads, P, d], [B, heads, N, d] twice, and which keys are real, bool [B, 1, 1, N]: [B, heads, P, d]."""
    parts = 1 if mask is None else parts_for(q, k)
    if mask is None or parts == 1:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return attention_in_parts(q, k, v, mask, parts)


def parts_for(q: Tensor, k: Tensor) -> int:
    """Into how many parts the keys of a single text are divided: as many as keep a GPU busy."""
    if (
        not DIVIDED
        or len(q) > 1
        or k.shape[2] < MANY
        or not q.is_cuda
        or q.dtype not in (torch.bfloat16, torch.float16)
    ):
        return 1
    at_once = q.shape[1] * -(-q.shape[2] // QUERIES)
    wanted = torch.cuda.get_device_properties(q.device).multi_processor_count // at_once
    return max((parts for parts in range(1, wanted + 1) if k.shape[2] % (parts * PARTS_OF) == 0), default=1)


def attention_in_parts(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, parts: int) -> Tensor:
    """The same attention of a single text, part by part: softmax over all keys is a weighted mean of those of parts."""
    k, v = (one[0].unflatten(1, (parts, -1)).transpose(0, 1) for one in (k, v))  # [parts, heads, N / parts, d]
    bias = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, -torch.inf)
    bias = bias.view(parts, 1, 1, -1).expand(-1, q.shape[1], q.shape[2], -1)
    found, log_sums = _attended(q.expand(parts, -1, -1, -1), k, v, bias)
    empty = ~mask.view(parts, 1, 1, -1).any(-1)  # [parts, 1, 1]: all keys of the part are padding
    # What the kernels return for such a part is not defined.
    found, log_sums = found.masked_fill(empty[..., None], 0.0), log_sums.masked_fill(empty, -torch.inf)
    weights = log_sums.float().softmax(0)[..., None]
    return (found.float() * weights).sum(0, keepdim=True).to(q.dtype)


def _attended(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Attention, and the log of each query's sum of exponentials: [parts, heads, P, d], [parts, heads, P]."""
    if not q.is_cuda:
        found, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=bias)
    else:
        found, log_sums = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, True)[:2]
    return found, log_sums[..., : q.shape[2]]  # some kernels round the number of queries up
