"""Denoisers with published weights that nobody here trained, as they come in their packages.

    denoiser = wind("2ch", Path("data/third-party"))
    noise = denoiser.network(x, times, *denoiser.conditions(len(x)))

benchmarks.transfer, which measures on them, says how to get the packages.
"""

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

MANY = (250, 500)  # steps whose outputs must agree, or there is no converged output to compare with


class Levels(NamedTuple):
    """The noise at each step, noisiest first: x = α · clean + σ · noise."""

    times: Tensor  # as the network is told
    alpha: Tensor
    sigma: Tensor


@dataclass(frozen=True)
class Denoiser:
    """A network that predicts the noise in its input, and what it was trained on."""

    name: str
    about: str
    package: str
    network: Callable[..., Tensor]  # (x, times, *conditions)
    module: nn.Module
    shape: tuple[int, ...]  # of one sample
    levels: Callable[[int], Levels]  # of so many steps
    conditions: Callable[[int], tuple[Tensor, ...]]  # of so many samples, the same for every seed
    clamp: Callable[[Tensor], Tensor] | None = None  # of a clean sample
    many: tuple[int, int] = MANY


def power_spectra(packages: Path) -> Denoiser:
    """21cmPSDenoiser: from one noisy power spectrum of the 21-cm signal, samples of what it is without its noise.

    Its own sampler solves the same ODE by adaptive Runge–Kutta, and ends with a step like our last. Its data are not
    in the package, so the noisy spectra are made up: a power law in k, and as much scatter as its bins have few modes.
    """
    with np.load(packages / "psdenoiser" / "constants.npz") as constants:
        across, along, modes = (torch.from_numpy(constants[key]) for key in ("kperp", "kpar", "Nmodes"))
        bias, scale = float(constants["noisy_mean"][0]), float(constants["noisy_std"][0])
    unet = bare("psdenoiser.model", packages).UNet(dim=(len(across), len(along)), channels=2, dim_mults=(1, 2, 4, 8))
    module = loaded(unet, read_weights(packages / "psdenoiser" / "denoiser_model.pt"))
    sde = bare("psdenoiser.sde", packages).VPSDE(beta_min=0.1, beta_max=20.0)
    k = (across[:, None] ** 2 + along[None, :] ** 2).sqrt()

    def levels(steps: int) -> Levels:
        t = torch.linspace(1, 1e-3, steps)
        alpha, sigma = sde.marginal_prob(torch.ones(steps, 1, 1, 1), t)
        return Levels(999 * t, alpha.flatten(), sigma)

    def noisy(i: int) -> Tensor:
        generator = torch.Generator().manual_seed(i)
        height, slope = torch.rand(2, generator=generator).tolist()
        power = 2 * height + (slope - 0.5) * torch.log10(k / 0.3)  # log₁₀ of 1 to 100 mK² at k = 0.3 / Mpc
        scatter = torch.randn(k.shape, generator=generator) / (modes.clamp(min=4).sqrt() * np.log(10))
        return ((power + scatter - bias) / scale * 2 - 1).float()[None]

    return Denoiser(
        "power spectra",
        "a UNet with attention that draws power spectra of the 21-cm signal, given a noisy one",
        "21cmPSDenoiser",
        lambda x, t, given: module(x, t, x_cdn=given),
        module,
        (1, *k.shape),
        levels,
        lambda samples: (torch.stack([noisy(i) for i in range(samples)]),),
    )


def electric_load(packages: Path) -> Denoiser:
    """enerdatasynth's 24-hour profiles of electric load; its own sampler is ancestral, in all 1,000 steps."""
    home = packages / "enerdatasynth" / "_bundled" / "checkpoints" / "pjm_load" / "transformer_T1000_H64_L2"
    made = json.loads((home / "result.json").read_text(encoding="utf-8"))
    transformer = bare("enerdatasynth.resources.pjm_load.models.transformer", packages).TransformerDenoiser(
        made["x_dim"], made["cond_dim"], made["hidden_dim"], made["n_heads"], made["n_layers"]
    )
    module = loaded(transformer, read_weights(home / "best.pt"))
    process = bare("enerdatasynth.resources.pjm_load.diffusion.ddpm", packages).DDPM(T=made["diffusion_steps"])

    def conditions(samples: int) -> tuple[Tensor]:
        month, day, warmth = calendar(samples)
        holiday, spread = torch.zeros(samples, 1), torch.zeros(samples, 1)  # none, and the usual
        return (torch.cat([month, day, holiday, warmth, warmth, spread], dim=1),)

    return Denoiser(
        "electric load",
        "a transformer that draws a day's electric load hour by hour, given the date and the weather",
        "enerdatasynth",
        module,
        module,
        (made["x_dim"],),
        lambda steps: discrete(process.alpha_bar, steps),
        conditions,
    )


def wind(preset: str, packages: Path) -> Denoiser:
    """enerdatasynth's days of wind. Its process has 200 levels, and so no more steps.

    For two channels the package recommends what is done here: deterministic DDIM, no guidance, and dynamic thresholds
    for the clean sample, which are its own function. For one and three it recommends noise and guidance besides.
    """
    home = packages / "enerdatasynth" / "_bundled" / "checkpoints" / "wind" / preset
    checkpoint = read_weights(home / "model_checkpoint.pt")
    made, weights = checkpoint["config"], checkpoint["model_state_dict"]
    channels, bound = len(made["model_channels"]), torch.tensor(made["sample_clip_std"])
    own = "hidden_dim num_conv_blocks num_transformer_layers num_heads kernel_size dropout time_emb_dim cond_emb_dim"
    hybrid = bare("enerdatasynth.resources.wind.models.models", packages).TransformerDenoiser(
        channels,
        weights["cond_mlp.net.0.weight"].shape[1],
        **{name: made[name] for name in (*own.split(), "seq_len", "norm_first")},
    )
    module = loaded(hybrid, weights)
    diffusion = bare("enerdatasynth.resources.wind.diffusion.diffusion", packages)
    process = diffusion.DiffusionSchedule.build(
        made["diffusion_timesteps"], made["beta_start"], made["beta_end"], made["beta_schedule"]
    )

    def conditions(samples: int) -> tuple[Tensor]:
        month, day, warmth = calendar(samples)
        regime = torch.eye(3)[torch.arange(samples) % 3]  # little, some, or much wind
        return (torch.cat([month, day, regime, warmth, warmth, torch.zeros(samples, 1)], dim=1),)

    drawn = {"1ch": "speed", "2ch": "vector", "3ch": "speed and direction"}[preset]
    return Denoiser(
        "wind" if preset == "2ch" else f"wind, {drawn}",
        f"convolutions and a transformer that draw the {drawn} of a day's wind every 5 minutes, given the date, the "
        "weather and how windy it is",
        "enerdatasynth",
        module,
        module,
        (channels, made["seq_len"]),
        lambda steps: discrete(process.alphas_cumprod, steps),
        conditions,
        lambda clean: diffusion.clamp_x0(clean, -bound, bound, dynamic_threshold=True),
        (made["diffusion_timesteps"] // 2, made["diffusion_timesteps"]),
    )


def bare(name: str, packages: Path) -> Any:
    """A module without what its packages import first: units, tables, downloads."""
    *parents, _ = name.split(".")
    for i in range(1, len(parents) + 1):
        parent = ModuleType(".".join(parents[:i]))
        parent.__path__ = [str(packages.joinpath(*parents[:i]))]
        sys.modules.setdefault(parent.__name__, parent)
    return importlib.import_module(name)


def read_weights(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def loaded(module: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    module.load_state_dict(weights)
    return module.eval().requires_grad_(False)


def discrete(alpha_bar: Tensor, steps: int) -> Levels:
    """So many of a process's own levels, evenly spread and both ends among them."""
    chosen = torch.linspace(len(alpha_bar) - 1, 0, steps).round().long()
    return Levels(chosen, alpha_bar[chosen].sqrt(), (1 - alpha_bar[chosen]).sqrt())


def calendar(samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """A month, a weekday and how warm it is in that month, in standard deviations: another for each sample."""
    i = torch.arange(samples)
    warmth = -1.4 * torch.cos(2 * torch.pi * (i % 12).float() / 12)  # coldest in January
    return torch.eye(12)[i % 12], torch.eye(7)[i % 7], warmth[:, None]
