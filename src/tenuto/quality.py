"""How far pictures are from the ones they should equal."""

import torch
from torch import Tensor

ALIKE = 30  # dB, from which on differences are hard to see in small pictures


def psnr(images: Tensor, reference: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image in dB, of pictures in [-1, 1] as they would be shown (clamped).

    Infinite where an image equals its reference.
    """
    if images.shape != reference.shape:
        raise ValueError(f"pictures of shape {tuple(images.shape)} cannot be compared with {tuple(reference.shape)}")
    error = (images.double().clamp(-1, 1) - reference.double().clamp(-1, 1)).square().flatten(1).mean(dim=1)
    return 10 * torch.log10(4 / error)  # the peak is the range, 2; its square is 4
