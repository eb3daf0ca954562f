"""How likely a text is to a masked diffusion model: a Monte Carlo estimate of a bound (LLaDA's conditional likelihood).

The model gives no probability of a text as a whole. Of L tokens, l are masked at random, and the probabilities of those
are summed and scaled by L / l; over all l from 1 to L alike, the mean of that bounds log p(text | prompt) from below.
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
    """An estimate of the bound on log p(text | prompt), in nats. Everything is computed: there are no steps here."""
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
    """Which of the tokens are masked in each draw: bool [draws, length], at least one. One draw does for one token.

    How many is spread evenly over the draws from a random beginning, which leaves the mean as it is and its error less.
    """
    if length == 1:
        return torch.ones(1, 1, dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    first = int(torch.randint(length, (1,), generator=generator))
    counts = (first + torch.arange(draws) * length // draws) % length + 1
    order = torch.rand(draws, length, generator=generator).argsort(dim=1).argsort(dim=1)
    return order < counts[:, None]
