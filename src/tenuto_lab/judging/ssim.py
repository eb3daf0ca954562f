"""The structural similarity of pictures (Wang et al. 2004), with the usual window: Gaussian, 11 × 11, σ = 1.5."""

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW, SIGMA = 11, 1.5
RANGE = 2.0  # of pixels in [-1, 1]
C1, C2 = (0.01 * RANGE) ** 2, (0.03 * RANGE) ** 2


def ssim(images: Tensor, reference: Tensor) -> Tensor:
    """Of each picture [N, C, H, W], clamped to [-1, 1]: 1 if equal to its reference; float64 [N].

    Only windows that lie inside the picture count. Channels are averaged.
    """
    if images.shape != reference.shape:
        raise ValueError(f"pictures of shape {tuple(images.shape)} cannot be compared with {tuple(reference.shape)}")
    if images.ndim != 4 or min(images.shape[2:]) < WINDOW:
        raise ValueError(f"pictures of shape {tuple(images.shape)} hold no window of {WINDOW} × {WINDOW} pixels")
    x, y = (picture.double().clamp(-1, 1).flatten(0, 1)[:, None] for picture in (images, reference))
    mean_x, mean_y = _blurred(x), _blurred(y)
    var_x, var_y = _blurred(x * x) - mean_x**2, _blurred(y * y) - mean_y**2
    shared = _blurred(x * y) - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + C1) / (mean_x**2 + mean_y**2 + C1)
    structure = (2 * shared + C2) / (var_x + var_y + C2)
    return (luminance * structure).reshape(len(images), -1).mean(dim=1)


def _blurred(x: Tensor) -> Tensor:
    """Gaussian means over all windows of [N, 1, H, W]."""
    along = torch.arange(WINDOW, dtype=x.dtype, device=x.device) - WINDOW // 2
    weights = (-(along**2) / (2 * SIGMA**2)).exp()
    weights = weights / weights.sum()
    return F.conv2d(F.conv2d(x, weights.view(1, 1, -1, 1)), weights.view(1, 1, 1, -1))
