"""diffusers' denoisers, small and with random weights, and what the tests that use them share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from diffusers import (
    DiTTransformer2DModel,
    UNet2DConditionModel,
)
from torch import Tensor, nn

from tenuto.runtime.executor import Executor
from tenuto.runtime.residual import Branch, Residual, plain
from tenuto.scheduling.schedule import Schedule
from tenuto.scheduling.units import Unit
from tenuto_lab.networks import unet

SDXL = {
    **unet.SDXL_BASE,
    "sample_size": 8,
    "block_out_channels": [8, 16, 24],
    "transformer_layers_per_block": [1, 2, 3],
    "attention_head_dim": [1, 2, 3],
    "norm_num_groups": 4,
    "cross_attention_dim": 16,
    "addition_time_embed_dim": 4,
    "projection_class_embeddings_input_dim": 6 * 4 + 16,
}
SD_1 = {**unet.SD_1, "sample_size": 8, "block_out_channels": [8, 8, 16, 16], "norm_num_groups": 4}
SD_1 |= {"cross_attention_dim": 16, "attention_head_dim": 2}
DIT = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 8, "num_layers": 2}
DIT |= {"sample_size": 8, "norm_eps": 1e-6}


def make(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "dit":
        network = DiTTransformer2DModel(**DIT)
        for name, parameter in network.named_parameters():
            if "norm1.linear" in name:  # gates of order one: a branch must matter
                nn.init.normal_(parameter, std=0.3)
        return network.eval()
    return UNet2DConditionModel(**(SDXL if kind == "sdxl" else SD_1)).eval()


def inputs(kind: str, seed: int = 0, batch: int = 2) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator)

    if kind == "dit":
        return {"hidden_states": normal(4, 8, 8), "timestep": torch.tensor([7] * batch)} | {
            "class_labels": torch.arange(batch)
        }
    call: dict[str, Any] = {"sample": normal(4, 8, 8), "timestep": 7, "encoder_hidden_states": normal(5, 16)}
    if kind == "sdxl":
        time_ids = torch.full((batch, 6), 8.0)
        call["added_cond_kwargs"] = {"text_embeds": normal(16), "time_ids": time_ids}
    return call


@torch.no_grad()
def run(module: nn.Module, call: dict[str, Any]) -> Tensor:
    return module(**call).sample


def make_schedule(units: tuple[Unit, ...], steps: int, every: int = 1, **options: Any) -> Schedule:
    active = np.zeros((len(units), steps), dtype=bool)
    active[:, ::every] = True
    return Schedule(
        units=tuple(unit.name for unit in units),
        active=active,
        flops=tuple(unit.flops for unit in units),
        predict=options.get("predict", "constant"),
        keep=options.get("keep", "branch"),
        model="tiny",
        fingerprint="sha256:0",
    )


class CountingResidual:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        self.calls.append(unit)
        return plain(unit, h, branch, gate)


def branches_seen(network: Callable[..., Any], generate: Callable[[Executor], object]) -> dict[str, list[Tensor]]:
    """What each unit's branch gave, step by step, in a generation with everything computed."""
    seen: dict[str, list[Tensor]] = {}

    def spied(*call: Any, residual: Residual, **named: Any) -> Any:
        def spying(unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
            seen.setdefault(unit, []).append(branch())
            return residual(unit, h, branch, gate)

        return network(*call, **named, residual=spying)

    generate(Executor(spied))
    return seen
