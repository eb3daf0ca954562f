"""What an audit must know of a model: the β of its sampler's steps, and how its blocks are told the timestep."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.models.architecture import NoiseLevels

Conditioning = Callable[..., Tensor]  # the network's inputs -> c_s, [row, …]


def ddim_betas(noise: NoiseLevels, steps: int) -> list[float]:
    """β_s of DDIM's steps, from z' = √(ᾱ'/ᾱ) z − (√(ᾱ'/ᾱ) √(1 − ᾱ) − √(1 − ᾱ')) ε."""
    from tenuto.sampling.pictures import Sampling, make_solver

    solver = make_solver(noise, Sampling(steps=steps))
    levels = solver.alphas_cumprod.double()
    betas = []
    for t in solver.timesteps.tolist():
        before = t - noise.timesteps // steps
        now, then = levels[t], levels[before] if before >= 0 else solver.final_alpha_cumprod.double()
        betas.append(float((then / now).sqrt() * (1 - now).sqrt() - (1 - then).sqrt()))
    return betas


def conditioning_of(model: Model) -> Conditioning | None:
    """c_s: the timestep's embedding, if the network's blocks receive it. None if the stream carries all conditioning.

    Class and caption are left out: they do not change along a trajectory, so they do not drift.
    """
    network: Any = model.network
    if model.architecture.name == "dit":
        return lambda x, t, *others, **named: network.t_embedder(t)
    if model.architecture.name == "unet":
        unet = network.denoiser
        return lambda x, t, *others, **named: unet.time_embedding(unet.time_proj(t).to(x.dtype))
    if model.architecture.name in ("llada", "uvit"):  # llada has no timestep; uvit's is a token of the stream
        return None
    raise UsageError(f"How {model.architecture.name} is told the timestep is not known here; give `conditioning`.")
