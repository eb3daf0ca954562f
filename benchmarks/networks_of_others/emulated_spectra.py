"""py21cmemu 3.0.0 (MIT licence): power spectra of the 21-cm signal, given 11 numbers of a cosmology and a redshift."""

from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.networks_of_others.case import Case
from benchmarks.networks_of_others.levels import VP_LEVELS, vp_betas
from benchmarks.networks_of_others.packages import bare, loaded, read_weights

SIZE, CONDITIONS = (32, 64), 12


class Denoiser(nn.Module):
    """The network, told the number of a level; its own label is 999 times the time."""

    def __init__(self, unet: nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, x: Tensor, timesteps: Tensor, cosmology: Tensor) -> Tensor:
        return self.unet(x, 999 * (timesteps + 1) / VP_LEVELS, cdn=cosmology)  # type: ignore[no-any-return]


def load(packages: Path) -> Case:
    """The conditions are drawn evenly from the network's own ranges, which are scaled to [0, 1]."""
    unet = bare("py21cmemu.models.mcg.score_model", packages).UNet(
        dim=SIZE, init_dim=48, channels=1, dim_mults=(1, 2, 4, 8, 16), cdn_len=CONDITIONS
    )
    weights = read_weights(packages / "py21cmemu" / "models" / "mcg" / "score_model_weights.pt")

    def conditions(samples: int) -> tuple[Tensor, ...]:
        drawn = [torch.rand(CONDITIONS, generator=torch.Generator().manual_seed(i)) for i in range(samples)]
        return (torch.stack(drawn),)

    return Case(
        "emulated spectra",
        "a U-Net with attention that draws power spectra of the 21-cm signal, given a cosmology",
        "py21cmemu 3.0.0 (MIT)",
        Denoiser(loaded(unet, weights)),
        (1, *SIZE),
        vp_betas(),
        conditions=conditions,
    )
