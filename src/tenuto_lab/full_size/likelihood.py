"""The likelihood of a text under a masked diffusion model: a Monte Carlo estimate of a bound, as for LLaDA.

The model gives no probability of a whole text. The estimate masks l of the L tokens at random, sums the
log-probabilities of the masked tokens, and scales the sum by L / l. With l uniform in 1 to L, the mean is a lower bound
on log p(text | prompt).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models.llada import LLaDA

DRAWS = 128  # as published


@torch.inference_mode()
def log_likelihood(
    network: LLaDA, prompt: Sequence[int], text: Sequence[int], *, draws: int = DRAWS, batch: int = 16, seed: int = 0
) -> float:
    """An estimate of the bound on log p(text | prompt), in nats. No schedule applies, because there are no steps."""
    if draws < 1 or batch < 1:
        raise UsageError(f"An estimate takes at least one draw at a time: not {draws} in {batch}s.")
    if not text:
        return 0.0
    device, length = next(network.parameters()).device, len(text)
    masks = masked_places(length, draws, seed).to(device)
    whole = torch.tensor([*prompt, *text], device=device)
    positions = torch.arange(len(prompt), len(whole), device=device)
    total = 0.0
    for masked in masks.split(batch):
        tokens = whole.repeat(len(masked), 1)
        tokens[:, len(prompt) :] = tokens[:, len(prompt) :].masked_fill(masked, network.config.mask_token_id)
        logits = network(tokens, positions=positions).float()
        likely = logits.log_softmax(-1).gather(-1, whole[None, len(prompt) :, None].expand(len(masked), -1, 1))[..., 0]
        total += float(((likely * masked).sum(1) * length / masked.sum(1)).sum())
    return total / len(masks)


def masked_places(length: int, draws: int, seed: int) -> Tensor:
    """Which tokens are masked in each draw, at least one: bool [draws, length]. A single token needs one draw only.

    The numbers of masked tokens are spread evenly over the draws, from a random start. This reduces the error of the
    mean and adds no bias.
    """
    if length == 1:
        return torch.ones(1, 1, dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    first = int(torch.randint(length, (1,), generator=generator))
    counts = (first + torch.arange(draws) * length // draws) % length + 1
    order = torch.rand(draws, length, generator=generator).argsort(dim=1).argsort(dim=1)
    return order < counts[:, None]
