"""A network of the family in a pipeline, so that every scheduler and every cache draws the same pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from diffusers import DDIMScheduler, DiffusionPipeline, FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn

import tenuto
from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.sampling.pictures import guide
from tenuto_lab.frontier.named_rivals import noise_of
from tenuto_lab.result_files import fields, number, optional, read_result, shaped, text, whole
from tenuto_lab.rivals.noise_prediction import Denoise, conditions_of
from training.autoencoder import Autoencoder, load_autoencoder
from training.class_captions import caption
from training.tiny_imagenet import SIZE

Prediction = Literal["noise", "flow"]
SCHEDULERS = {"DDIMScheduler": DDIMScheduler, "FlowMatchEulerDiscreteScheduler": FlowMatchEulerDiscreteScheduler}

TRAINED = fields(
    {"objective": text, "seconds": number(least=0), "samples_seen": whole()},
    {"held_out_loss": optional(number())},
    others=True,
)


class Guided(nn.Module):
    """A network with classifier-free guidance, both halves in one batch.

    conditions  what the network takes beside the samples and the times, for samples with their requests and without
    """

    def __init__(self, network: Callable[..., Any], conditions: Sequence[Any], guidance: float) -> None:
        super().__init__()
        self.network, self.conditions, self.guidance = network, tuple(conditions), guidance
        self.evaluated = 0

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        self.evaluated += 1
        output: Tensor = self.network(torch.cat([x, x]), torch.cat([times, times]).float(), *self.conditions)
        return guide(output.float(), self.guidance)


class Drawing(DiffusionPipeline):
    """The loop that pipelines have. A flow gets evenly spaced noise levels, as FLUX's pipeline gives them."""

    def __init__(self, transformer: nn.Module, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler)
        self.set_progress_bar_config(disable=True)

    @torch.inference_mode()
    def __call__(self, noise: Tensor, num_inference_steps: int) -> Tensor:
        set_times(self.scheduler, num_inference_steps, noise.device)
        x = noise
        with self.progress_bar(total=num_inference_steps) as bar:
            for t in self.scheduler.timesteps:
                x = self.scheduler.step(self.transformer(x, t.expand(len(x))), t, x, return_dict=False)[0]
                bar.update()
        return x


def set_times(scheduler: Any, steps: int, device: Any = None) -> None:
    if isinstance(scheduler, FlowMatchEulerDiscreteScheduler):
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), device=device)
    else:
        scheduler.set_timesteps(steps, device=device)
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)


@dataclass(frozen=True)
class Network:
    """A trained network of the family, its autoencoder, and what is known of its training."""

    path: Path
    model: Model
    autoencoder: Autoencoder
    record: dict[str, Any]  # loss.json

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def prediction(self) -> Prediction:
        return "flow" if self.record["objective"] == "flow" else "noise"

    @property
    def seconds(self) -> float:
        """Of training, on the GPU that the record names."""
        return float(self.record["seconds"])

    @property
    def side(self) -> int:
        """Of its pictures, in pixels."""
        return int(self.record.get("side", SIZE))

    @property
    def classes(self) -> int:
        """How many kinds of things it draws."""
        captioned = self.model.architecture.asks_for == "caption"
        return len(self.model.labels) if captioned else int(self.model.config.num_classes)

    def requests(self, labels: Sequence[int]) -> list[Any]:
        """How the network is asked for these classes: by their numbers, or by captions."""
        if self.model.architecture.asks_for == "caption":
            return [caption(self.model.labels[label]) for label in labels]
        return list(labels)

    @cached_property
    def parameters(self) -> int:
        """Of the network that is evaluated at every step; a text encoder runs once."""
        return sum(value.numel() for value in self.model.network.parameters())

    def scheduler(self) -> Any:
        """The scheduler that the checkpoint names, ready for any number of steps."""
        path = self.path / "scheduler" / "scheduler_config.json"
        config = read_result(path, "scheduler config", shaped({"_class_name": str}))
        if config["_class_name"] not in SCHEDULERS:
            raise UsageError(f"{path} names {config['_class_name']}; known are {', '.join(SCHEDULERS)}.")
        known = {key: value for key, value in config.items() if key not in ("_class_name", "prediction_type")}
        return SCHEDULERS[config["_class_name"]](**known)


def opened(path: Path, device: torch.device) -> Network:
    model = tenuto.load(str(path), device=device, dtype=torch.float32)
    record = read_result(path / "loss.json", "training record", TRAINED)
    return Network(path, model, load_autoencoder(path / "vae").to(device), record)


class Requests:
    """The pictures to draw: classes in turn, each sample from its own noise, at one guidance.

    first  the number of the first sample; those before it belong to other requests
    """

    def __init__(self, network: Network, guidance: float, samples: int, first: int = 0) -> None:
        self.network, self.guidance, self.samples = network, guidance, samples
        self.labels = torch.arange(first, first + samples, device=network.model.device) % network.classes
        self.noise = noise_of(network.model, first, samples)
        self.conditions = conditions_of(network.model, network.requests(self.labels.tolist()), guided=True)

    def guided(self, network: Callable[..., Any] | None = None) -> Guided:
        """The network with guidance, or something that evaluates it in another way."""
        return Guided(network or self.network.model.network, self.conditions, self.guidance)

    def drawn(self, steps: int, scheduler: Any | None = None, network: Callable[..., Any] | None = None) -> Tensor:
        """Latents in so many steps, evaluated at each."""
        pipeline = Drawing(self.guided(network), scheduler or self.network.scheduler())
        latents: Tensor = pipeline(self.noise, steps)
        return latents

    def held(self, steps: int, budget: float) -> tuple[Tensor, int]:
        """Latents by Tenuto's default, and how often it evaluated the network."""
        guided = self.guided()
        pipeline = Drawing(guided, self.network.scheduler())
        with tenuto.accelerated(pipeline, budget, mode="skip"):
            latents: Tensor = pipeline(self.noise, steps)
        return latents, guided.evaluated

    def denoiser(self) -> Denoise:
        """The prediction after guidance as a function of the sample and the time."""
        guided = self.guided()

        def predict(x: Tensor, time: float) -> Tensor:
            return guided(x, torch.full((len(x),), time, device=x.device))  # type: ignore[no-any-return]

        return predict

    @torch.inference_mode()
    def shown(self, latents: Tensor) -> Tensor:
        """Pictures in [-1, 1], on the network's device."""
        parts = [self.network.autoencoder.decode(part).float().clamp(-1, 1) for part in latents.split(500)]
        return torch.cat(parts)
