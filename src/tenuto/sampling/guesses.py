"""From logits to guesses: a token for each place, the confidence in it, and which of the guesses are written."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from tenuto.runtime.compilation import branch_function, function_of_many_shapes
from tenuto.sampling.settings import MaskedSampling

PARTS = 64  # in which a vocabulary is read, if it can be divided by so many


def nucleus(logits: Tensor, sampling: MaskedSampling) -> Tensor:
    """Keep the likeliest tokens whose probabilities at the temperature add up to top_p; exclude the others."""
    if sampling.top_p == 1:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True)
    likely = (ordered / (sampling.temperature or 1.0)).softmax(-1)
    before = likely.cumsum(-1) - likely  # the probability of all tokens before each
    return torch.empty_like(logits).scatter_(-1, order, ordered.masked_fill(before >= sampling.top_p, float("-inf")))


def choose_tokens(
    logits: Tensor,
    sampling: MaskedSampling,
    mask_token: int,
    generators: Sequence[torch.Generator],
    places: Tensor,
) -> Tensor:
    """A token for each place, [B, P, V] -> [B, P]: the likeliest, or at a temperature one drawn by the Gumbel trick.

    The mask token is never chosen. A trained network does not predict it; a network with held branches might.
    """
    if sampling.temperature > 0:
        # e^l / (−log u)^T, as published: in float64, because rounding would favour the likely tokens too much
        noise = _draw(generators, (sampling.block_length, logits.shape[-1]), torch.float64, logits.device)
        noise = noise.gather(1, places[:, :, None].expand(-1, -1, logits.shape[-1]))
        logits = logits.double().exp() / (-noise.log()) ** sampling.temperature
    return _without(logits, mask_token).argmax(-1)


def confidences(
    logits: Tensor, guesses: Tensor, sampling: MaskedSampling, generators: Sequence[torch.Generator], places: Tensor
) -> Tensor:
    """[B, P]: the confidence in each guess, or random numbers.

    As published, LLaDA's rule ignores the temperature, and Dream's rules (margin, entropy) use it.
    """
    if sampling.remasking == "random":
        return _draw(generators, (sampling.block_length,), torch.float32, logits.device).gather(1, places)
    if sampling.remasking == "low_confidence":
        return probability(logits, guesses)
    likely = (logits / (sampling.temperature or 1.0)).softmax(-1)
    if sampling.remasking == "entropy":
        return (likely * (likely + 1e-10).log()).sum(-1)
    best, second = likely.topk(2, dim=-1).values.unbind(-1)
    return best - second


def probability(logits: Tensor, guesses: Tensor) -> Tensor:
    """[B, P, V], [B, P] -> [B, P]: the probability of each guess."""
    return logits.softmax(-1).gather(-1, guesses[..., None])[..., 0]


def most_confident(confidence: Tensor, count: int) -> Tensor:
    """[B, P] -> the `count` most confident places of each row, [B, count]; of equal ones, the leftmost."""
    # A stable sort, not top-k, because top-k orders equal values differently on different devices.
    return confidence.sort(dim=1, descending=True, stable=True).indices[:, :count]


@function_of_many_shapes
def accepted(confidence: Tensor, likely: Tensor, masked: Tensor, sampling: MaskedSampling) -> Tensor:
    """[B, P] bool: the guesses that parallel decoding writes.

    confidence  by the family's rule: it says which guess is the surest, and that one is written in any case
    likely      the probability of each guess, which the threshold and the factor are about
    masked      the places that may be written
    """
    if not masked.shape[1]:
        return masked
    surest = confidence.masked_fill(~masked, -torch.inf).argmax(1, keepdim=True)
    if sampling.factor is None:
        assert sampling.parallel is not None
        sure = likely >= sampling.parallel
    else:
        # The n surest are written together as long as (n + 1) (1 − p_n) ≤ factor, p_n being the least of them.
        ordered, order = likely.masked_fill(~masked, -torch.inf).sort(dim=1, descending=True, stable=True)
        n = torch.arange(1, ordered.shape[1] + 1, device=ordered.device)
        together = (ordered >= 1 - sampling.factor / (n + 1)).cumprod(1).bool()
        sure = torch.zeros_like(masked).scatter_(1, order, together)
    return sure.scatter(1, surest, True) & masked


@dataclass(frozen=True)
class Likeliest:
    """Reads the likeliest token of each place and its probability from logits, within the network's evaluation.

    The logits of a large vocabulary take much memory. If they are read within the recorded evaluation, they are never
    copied.
    """

    mask_token: int

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """[B, P, V] -> guesses and their probabilities, [B, P] each."""
        found: tuple[Tensor, Tensor] = _read(logits, self.mask_token)
        return found


@branch_function
def _read(logits: Tensor, mask_token: int) -> tuple[Tensor, Tensor]:
    # The vocabulary is read in parts at the same time: there are few places, and a GPU has many processors.
    parts = gcd(logits.shape[-1], PARTS)
    wide = logits.float().unflatten(-1, (parts, -1))
    words = torch.arange(logits.shape[-1], device=logits.device).view(parts, -1)
    best, within = wide.where(words != mask_token, -torch.inf).max(-1)
    most, part = best.max(-1)
    guesses = part * wide.shape[-1] + within.gather(-1, part[..., None])[..., 0]
    return guesses, (most - wide.logsumexp(-1).logsumexp(-1)).exp()


def _without(logits: Tensor, token: int) -> Tensor:
    return logits.index_fill(-1, torch.full((1,), token, device=logits.device), float("-inf"))


def _draw(
    generators: Sequence[torch.Generator], shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Uniform numbers [len(generators), *shape], each row from its own generator; the copy does not block the host."""
    noise = torch.stack([torch.rand(tuple(shape), generator=generator, dtype=dtype) for generator in generators])
    return noise.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else noise.to(device)
