"""enerdatasynth 0.8.4 (MIT licence): days of wind, three networks of one kind, with 200 noise levels.

For two channels the package recommends what is done here: deterministic DDIM, no guidance, and dynamic thresholds for
the clean sample, which are its own function. For one and three channels it recommends noise and guidance besides.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.networks_of_others.case import Case
from benchmarks.networks_of_others.electric_load import calendar
from benchmarks.networks_of_others.levels import betas_of
from benchmarks.networks_of_others.packages import bare, loaded, read_weights

DRAWN = {"2ch": "vector", "1ch": "speed", "3ch": "speed and direction"}


class Clamped(nn.Module):
    """The noise that leads to the clamped clean sample, so that every scheduler uses the package's own thresholds."""

    def __init__(self, denoiser: nn.Module, alpha_bar: Tensor, clamp: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.denoiser, self.clamp = denoiser, clamp
        self.register_buffer("alpha_bar", alpha_bar)

    def forward(self, x: Tensor, timesteps: Tensor, given: Tensor) -> Tensor:
        below = timesteps.long()  # a solver may ask for a time between two levels
        above = (below + 1).clamp(max=len(self.alpha_bar) - 1)  # type: ignore[arg-type]
        low, high = self.alpha_bar[below], self.alpha_bar[above]  # type: ignore[index]
        at = torch.lerp(low, high, (timesteps - below).to(low))[:, None, None]
        alpha, sigma = at.sqrt(), (1 - at).sqrt()
        clean = self.clamp((x - sigma * self.denoiser(x, timesteps, given)) / alpha)
        return (x - alpha * clean) / sigma  # type: ignore[no-any-return]


def load(packages: Path, preset: str = "2ch") -> Case:
    code = bare("enerdatasynth.resources.wind.models.models", packages)
    home = packages / "enerdatasynth" / "_bundled" / "checkpoints" / "wind" / preset
    checkpoint = read_weights(home / "model_checkpoint.pt")
    made, weights = checkpoint["config"], checkpoint["model_state_dict"]
    channels, bound = len(made["model_channels"]), torch.tensor(made["sample_clip_std"])
    own = "hidden_dim num_conv_blocks num_transformer_layers num_heads kernel_size dropout time_emb_dim cond_emb_dim"
    hybrid = code.TransformerDenoiser(
        channels,
        weights["cond_mlp.net.0.weight"].shape[1],
        **{name: made[name] for name in (*own.split(), "seq_len", "norm_first")},
    )
    diffusion = bare("enerdatasynth.resources.wind.diffusion.diffusion", packages)
    process = diffusion.DiffusionSchedule.build(
        made["diffusion_timesteps"], made["beta_start"], made["beta_end"], made["beta_schedule"]
    )

    def clamp(clean: Tensor) -> Tensor:
        limit = bound.to(clean.device)
        return diffusion.clamp_x0(clean, -limit, limit, dynamic_threshold=True)  # type: ignore[no-any-return]

    def conditions(samples: int) -> tuple[Tensor, ...]:
        month, day, warmth = calendar(samples)
        regime = torch.eye(3)[torch.arange(samples) % 3]  # little, some, or much wind
        return (torch.cat([month, day, regime, warmth, warmth, torch.zeros(samples, 1)], dim=1),)

    return Case(
        "wind" if preset == "2ch" else f"wind, {DRAWN[preset]}",
        f"convolutions and a transformer that draw the {DRAWN[preset]} of a day's wind every 5 minutes, given the "
        "date, the weather and how windy it is",
        "enerdatasynth 0.8.4 (MIT)",
        Clamped(loaded(hybrid, weights), process.alphas_cumprod, clamp),
        (channels, made["seq_len"]),
        betas_of(process.alphas_cumprod.double().numpy()),
        conditions=conditions,
    )
