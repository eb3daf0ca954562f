"""enerdatasynth 0.8.4 (MIT licence): 24-hour profiles of electric load; its own sampler is ancestral, 1,000 steps."""

import json
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.networks_of_others.case import Case
from benchmarks.networks_of_others.levels import betas_of
from benchmarks.networks_of_others.packages import bare, loaded, read_weights


def load(packages: Path) -> Case:
    code = bare("enerdatasynth.resources.pjm_load.models.transformer", packages)
    home = packages / "enerdatasynth" / "_bundled" / "checkpoints" / "pjm_load" / "transformer_T1000_H64_L2"
    made = json.loads((home / "result.json").read_text(encoding="utf-8"))
    module = code.TransformerDenoiser(
        made["x_dim"], made["cond_dim"], made["hidden_dim"], made["n_heads"], made["n_layers"]
    )
    process = bare("enerdatasynth.resources.pjm_load.diffusion.ddpm", packages).DDPM(T=made["diffusion_steps"])

    def conditions(samples: int) -> tuple[Tensor, ...]:
        month, day, warmth = calendar(samples)
        holiday, spread = torch.zeros(samples, 1), torch.zeros(samples, 1)  # none, and the usual
        return (torch.cat([month, day, holiday, warmth, warmth, spread], dim=1),)

    return Case(
        "electric load",
        "a transformer that draws a day's electric load hour by hour, given the date and the weather",
        "enerdatasynth 0.8.4 (MIT)",
        loaded(module, read_weights(home / "best.pt")),
        (made["x_dim"],),
        betas_of(process.alpha_bar.double().numpy()),
        conditions=conditions,
    )


def calendar(samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """A month, a weekday and how warm it is in that month, in standard deviations: another for each sample."""
    i = torch.arange(samples)
    warmth = -1.4 * torch.cos(2 * torch.pi * (i % 12).float() / 12)  # coldest in January
    return torch.eye(12)[i % 12], torch.eye(7)[i % 7], warmth[:, None]
