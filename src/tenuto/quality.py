"""How far pictures are from their references."""

import torch
from torch import Tensor

ALIKE = 30  # dB; from here on, differences in small pictures are hard to see


def psnr(images: Tensor, reference: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image in dB; values are clamped to [-1, 1], as they would be shown.

    Infinite if an image equals its reference, and minus infinity if either holds values that are not numbers.
    """
    if images.shape != reference.shape:
        raise ValueError(f"pictures of shape {tuple(images.shape)} cannot be compared with {tuple(reference.shape)}")
    error = (images.double().clamp(-1, 1) - reference.double().clamp(-1, 1)).square().flatten(1).mean(dim=1)
    error = error.nan_to_num(nan=torch.inf)
    return 10 * torch.log10(4 / error)  # the peak is the range, 2; its square is 4
