"""21cmPSDenoiser 1.0.2 (MIT licence): from one noisy power spectrum of the 21-cm signal, samples of the clean one."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.networks_of_others.case import Case
from benchmarks.networks_of_others.levels import VP_LEVELS, vp_betas
from benchmarks.networks_of_others.packages import bare, loaded, read_weights


class Denoiser(nn.Module):
    """The network, told the number of a level; its own label is 999 times the time."""

    def __init__(self, unet: nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, x: Tensor, timesteps: Tensor, noisy: Tensor) -> Tensor:
        return self.unet(x, 999 * (timesteps + 1) / VP_LEVELS, x_cdn=noisy)  # type: ignore[no-any-return]


def load(packages: Path) -> Case:
    """The network's own sampler solves the same ODE by an adaptive Runge–Kutta method.

    The network's data are not in the package, so the noisy spectra are made up: a power law in k, with more scatter
    where a bin has fewer modes.
    """
    unet = bare("psdenoiser.model", packages).UNet
    with np.load(packages / "psdenoiser" / "constants.npz") as constants:
        given = {key: torch.from_numpy(constants[key]) for key in ("kperp", "kpar", "Nmodes")}
        bias, scale = float(constants["noisy_mean"][0]), float(constants["noisy_std"][0])
    size = (len(given["kperp"]), len(given["kpar"]))
    weights = read_weights(packages / "psdenoiser" / "denoiser_model.pt")
    module = loaded(unet(dim=size, channels=2, dim_mults=(1, 2, 4, 8)), weights)

    def conditions(samples: int) -> tuple[Tensor, ...]:
        return (torch.stack([(noisy(i, given) - bias) / scale * 2 - 1 for i in range(samples)]).float()[:, None],)

    return Case(
        "power spectra",
        "a U-Net with attention that draws power spectra of the 21-cm signal, given a noisy one",
        "21cmPSDenoiser 1.0.2 (MIT)",
        Denoiser(module),
        (1, *size),
        vp_betas(),
        conditions=conditions,
    )


def noisy(i: int, given: dict[str, Any]) -> Tensor:
    """log₁₀ of a power law of 1 to 100 mK² at k = 0.3 / Mpc, and its scatter."""
    k = (given["kperp"][:, None] ** 2 + given["kpar"][None, :] ** 2).sqrt()
    generator = torch.Generator().manual_seed(i)
    height, slope = torch.rand(2, generator=generator).tolist()
    power = 2 * height + (slope - 0.5) * torch.log10(k / 0.3)
    scatter = torch.randn(k.shape, generator=generator) / (given["Nmodes"].clamp(min=4).sqrt() * np.log(10))
    return power + scatter  # type: ignore[no-any-return]
