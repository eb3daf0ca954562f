"""Fast-dLLM's loop (Wu et al., github.com/NVlabs/Fast-dLLM), on our networks.

Every block begins with an evaluation of the whole text, whose keys and values are kept. The following evaluations
compute the block and everything behind it (prefix cache), or the block alone (dual cache), until nothing in the block
is masked. As published, the loop runs without graphs, reads logits in float64 wherever a position was computed, and the
host looks at every step's result before it starts the next.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tenuto.models.language import LanguageNetwork
from tenuto.runtime.keys import Keys

Accept = Callable[[Tensor, Tensor], Tensor]  # (confidence [B, P], masked [B, P]) -> what is written [B, P]


class Outcome(NamedTuple):
    tokens: Tensor  # [B, length]
    evaluations: int
    computed: int  # positions of a row, over all evaluations


def above(threshold: float) -> Accept:
    """Their rule: the surest masked token of each row, and every other one that reaches the threshold."""

    def accept(confidence: Tensor, masked: Tensor) -> Tensor:
        written = torch.zeros_like(masked)
        for row in range(len(confidence)):
            count = int(masked[row].sum())
            order = confidence[row].masked_fill(~masked[row], -torch.inf).topk(count).indices
            written[row, order] = True
            for place in order[1:]:
                if confidence[row, place] < threshold:
                    written[row, place] = False
        return written

    return accept


@torch.inference_mode()
def write(
    network: LanguageNetwork,
    prompts: Tensor,
    length: int,
    block_length: int,
    accept: Accept,
    dual: bool = True,
    everywhere: bool = True,
) -> Outcome:
    """What is written after prompts [B, width].

    everywhere  as published, logits are computed at every computed position; if not, only in the block
    """
    mask = network.config.mask_token_id
    (size, width), device = prompts.shape, prompts.device
    x = torch.cat([prompts, prompts.new_full((size, length), mask)], dim=1)
    evaluations = computed = 0
    for first in range(width, width + length, block_length):
        last = first + block_length
        block = torch.arange(first, last, device=device).expand(size, -1)
        keys, rows = Keys(), None
        while rows is None or bool((x[:, first:last] == mask).any()):
            at = torch.arange(x.shape[1], device=device).expand(size, -1) if rows is None else rows
            asked = at if everywhere else block
            logits = network(x, positions=asked, memory=(keys, rows))
            places = block - asked[:, :1]  # where the block is among the positions asked for
            guesses = logits.argmax(-1)
            likely = logits.double().softmax(-1).gather(-1, guesses[..., None])[..., 0]
            guesses, likely = guesses.gather(1, places), likely.gather(1, places)
            inside = x[:, first:last]
            x[:, first:last] = torch.where(accept(likely, inside == mask), guesses, inside)
            evaluations += 1
            computed += at.shape[1]
            rows = block if dual else torch.arange(first, width + length, device=device).expand(size, -1)
    return Outcome(x[:, width:], evaluations, computed)
