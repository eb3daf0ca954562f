"""How far pictures and texts are from those of the full run, in numbers and in words."""

import math
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

PEAK = 4.0  # standard deviations: the range of what has none, which for pictures is about that from black to white
ALIKE = 30  # dB; from here on, differences in small pictures are hard to see
WORDS = (
    (40.0, "cannot be told from those of the full run"),
    (ALIKE, "differ from those of the full run in ways that are hard to see"),
    (20.0, "differ visibly from those of the full run"),
    (-math.inf, "have little to do with those of the full run"),
)
IN_NUMBERS = (  # for what is not looked at
    (40.0, "are very near to those of the full run"),
    (ALIKE, "are near to those of the full run"),
    (20.0, "differ clearly from those of the full run"),
    (-math.inf, "have little to do with those of the full run"),
)
DIVERGES = (
    "Once a token differs, all later tokens depend on it, so the share of equal tokens says little about quality. "
    "Read both texts, or let `tenuto check` compare them step by step."
)


def psnr(images: Tensor, reference: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image in dB; values are clamped to [-1, 1], as they would be shown.

    Infinite if an image equals its reference, and minus infinity if either holds values that are not numbers.
    """
    if images.shape != reference.shape:
        raise ValueError(f"pictures of shape {tuple(images.shape)} cannot be compared with {tuple(reference.shape)}")
    error = (images.double().clamp(-1, 1) - reference.double().clamp(-1, 1)).square().flatten(1).mean(dim=1)
    error = error.nan_to_num(nan=torch.inf)
    return 10 * torch.log10(4 / error)  # the peak is the range, 2; its square is 4


def psnr_without_range(samples: Tensor, reference: Tensor) -> Tensor:
    """The same for samples of any size (latents, sound): the peak is four standard deviations of the reference."""
    if samples.shape != reference.shape:
        raise ValueError(f"samples of shape {tuple(samples.shape)} cannot be compared with {tuple(reference.shape)}")
    error = (samples.double() - reference.double()).square().flatten(1).mean(dim=1).nan_to_num(nan=torch.inf)
    peak = PEAK**2 * reference.double().flatten(1).var(dim=1)
    return torch.where(error == 0, torch.inf, 10 * torch.log10(peak / error))


def of_pictures(decibels: Sequence[float], what: str = "pictures", seen: bool = True) -> str:
    """Says in words how near pictures are to those of the full run.

    what  what they are, if not pictures
    seen  whether they are looked at; otherwise no words are found about what can be seen
    """
    differing = [value for value in decibels if value != math.inf]
    same = len(decibels) - len(differing)
    if not differing:
        return f"the {what} are identical to those of the full run"
    words = next(words for least, words in (WORDS if seen else IN_NUMBERS) if min(differing) >= least)
    if len(decibels) == 1:
        return f"the {what} {words}: {differing[0]:.1f} dB"
    figures = f"{fmean(differing):.1f} dB on average, the worst {min(differing):.1f} dB"
    return f"the {what} {words}: {figures}" + (f"; {same} of {len(decibels)} are identical" if same else "")


def of_two_texts(tokens: Sequence[int], reference: Sequence[int]) -> str:
    """Says in words how far a text follows the full run's text, and what this means."""
    pairs = list(zip(tokens, reference, strict=True))
    first = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    if first is None:
        return "The text is identical to that of the full run."
    equal = sum(one == other for one, other in pairs) / len(pairs)
    begins = "the first token" if first == 0 else f"token {first + 1}"
    return f"The texts differ from {begins} on, and {equal:.0%} of their {len(pairs)} tokens are equal. {DIVERGES}"
