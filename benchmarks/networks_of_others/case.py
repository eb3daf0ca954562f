"""What the transfer benchmark needs to know of a network that others trained, and a pipeline that samples from it."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import DDIMScheduler, DiffusionPipeline
from torch import Tensor, nn

APART = 100_000  # between the seeds of two rounds


def nothing(samples: int) -> tuple[Tensor, ...]:
    """No conditions."""
    return ()


class ClippedDDIM(DDIMScheduler):
    """DDIM that steps by the noise that belongs to the clipped clean estimate, as samplers do that clip.

    By default diffusers clips the clean estimate and keeps the noise of the estimate before clipping. The two do not
    make up the sample any more, so every step that clips moves the sample away, and more steps do so more often.
    """

    def step(
        self,
        model_output: Tensor,
        timestep: Any,
        sample: Tensor,
        eta: float = 0.0,
        use_clipped_model_output: bool = True,
        generator: Any = None,
        variance_noise: Tensor | None = None,
        return_dict: bool = True,
    ) -> Any:
        given = (eta, use_clipped_model_output, generator, variance_noise, return_dict)
        return super().step(model_output, timestep, sample, *given)


@dataclass(frozen=True)
class Case:
    """A network that predicts the noise in its input, and how it is sampled."""

    name: str
    about: str
    source: str  # where it comes from, and its licence
    network: nn.Module  # (x, timesteps, *conditions) -> noise; a timestep is the number of a training level, from 0 on
    shape: tuple[int, ...]  # of one sample
    betas: tuple[float, ...]  # of the noise levels that it was trained with, the least noisy first
    clipped: bool = False  # whether the network's own sampler clips its estimate of the clean sample to [-1, 1]
    conditions: Callable[[int], tuple[Tensor, ...]] = nothing  # of so many samples, the same for every seed

    def scheduler(self, kind: type = DDIMScheduler, **options: Any) -> Any:
        """A diffusers scheduler over the network's own noise levels; any option may be given otherwise.

        A scheduler that can clip the clean estimate does so if the network's own sampler does. Multistep solvers call
        that thresholding; with 1 as the largest value it is the same clipping.
        """
        if kind is DDIMScheduler and self.clipped:
            kind = ClippedDDIM
        own = {
            "num_train_timesteps": len(self.betas),
            "trained_betas": list(self.betas),
            "prediction_type": "epsilon",
            "clip_sample": self.clipped,
            "thresholding": self.clipped,
            "sample_max_value": 1.0,
            "set_alpha_to_one": True,
            "timestep_spacing": "linspace",
        }
        known = inspect.signature(kind).parameters
        if "clip_sample" in known:
            own["thresholding"] = False
        return kind(**{name: value for name, value in own.items() if name in known} | options)

    def pipeline(self, scheduler: Any | None = None) -> "Sampling":
        return Sampling(self.network, self.scheduler() if scheduler is None else scheduler)

    def noise(self, seeds: Sequence[int], samples: int) -> Tensor:
        """So many samples of each seed, one seed's after the other's."""
        return torch.stack([_noise(self.shape, seed * APART + i) for seed in seeds for i in range(samples)])

    def draw(self, pipeline: "Sampling", steps: int, seeds: Sequence[int], samples: int) -> Tensor:
        """What a pipeline of this network makes of the noise of these seeds, on the network's device."""
        device = next(self.network.parameters()).device
        conditions = [torch.cat([given] * len(seeds)).to(device) for given in self.conditions(samples)]
        return pipeline(self.noise(seeds, samples).to(device), conditions, steps)  # type: ignore[no-any-return]


class Sampling(DiffusionPipeline):
    """A network and a scheduler in the loop that every pipeline has, so that any scheduler and cache can be tried."""

    def __init__(self, unet: nn.Module, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)
        self.set_progress_bar_config(disable=True)

    @torch.inference_mode()
    def __call__(self, noise: Tensor, conditions: Sequence[Tensor], num_inference_steps: int) -> Tensor:
        self.scheduler.set_timesteps(num_inference_steps, device=noise.device)
        if hasattr(self.scheduler, "set_begin_index"):
            self.scheduler.set_begin_index(0)  # or a scheduler starts late if its first two timesteps round to the same
        x = noise * self.scheduler.init_noise_sigma
        with self.progress_bar(total=len(self.scheduler.timesteps)) as bar:
            for t in self.scheduler.timesteps:
                predicted = self.unet(self.scheduler.scale_model_input(x, t), t.expand(len(x)), *conditions)
                x = self.scheduler.step(predicted, t, x, return_dict=False)[0]
                bar.update()
        return x


def _noise(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
