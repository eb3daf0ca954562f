"""DiT as diffusers stores and runs it: the `transformer` of a DiTPipeline, at the seam.

Units have the names of the original DiT (`tenuto.models.dit`); weights have diffusers' names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tenuto.models.architecture import Architecture, ConfigError
from tenuto.models.dit import ARCHITECTURE as ORIGINAL
from tenuto.runtime.residual import Residual, plain
from tenuto.scheduling.units import Unit
from tenuto_lab.seam.attached import Attached, DiffusersConfig, frozen

CLASS = "DiTTransformer2DModel"
FIRST_CLASS = "Transformer2DModel"  # the name in the first published pipelines
XL_2: Mapping[str, Any] = {
    "num_attention_heads": 16,
    "attention_head_dim": 72,
    "in_channels": 4,
    "out_channels": 8,
    "num_layers": 28,
    "attention_bias": True,
    "sample_size": 32,
    "patch_size": 2,
    "activation_fn": "gelu-approximate",
    "num_embeds_ada_norm": 1000,
    "norm_type": "ada_norm_zero",
    "norm_elementwise_affine": False,
}


@dataclass(frozen=True)
class DiTDiffusersConfig(DiffusersConfig):
    """diffusers' config; the default is DiT-XL/2 for 256×256."""

    arguments: tuple[tuple[str, Any], ...] = frozen(XL_2)
    class_name = CLASS

    @classmethod
    def from_diffusers(cls, config: Mapping[str, Any]) -> "DiTDiffusersConfig":
        if (kind := config.get("_class_name", CLASS)) not in (CLASS, FIRST_CLASS):
            raise ConfigError(f"it is the config of a {kind}, not of a {CLASS}")
        if config.get("norm_type", "ada_norm_zero") != "ada_norm_zero":
            raise ConfigError(f"it normalises by {config['norm_type']}, as no DiT does")
        return cls(frozen(config))

    @property
    def classes(self) -> int:
        """The number of classes, without the null class."""
        return int(self.get("num_embeds_ada_norm", 1000))

    @property
    def null_class(self) -> int:
        return self.classes


class AttachedDiT(Attached):
    """diffusers' DiT whose forward takes a residual."""

    def __init__(self, config: DiTDiffusersConfig) -> None:
        super().__init__(config)
        # No checkpoint stores the position table, so compute it now, even if the weights are still on the meta device.
        old = self.denoiser.pos_embed
        with torch.device("cpu"):
            fresh = type(old)(
                height=old.height * old.patch_size,
                width=old.width * old.patch_size,
                patch_size=old.patch_size,
                in_channels=1,
                embed_dim=old.proj.out_channels,
            )
        old.register_buffer("pos_embed", fresh.pos_embed, persistent=False)

    def forward(self, x: Tensor, t: Tensor, y: Tensor, residual: Residual = plain) -> Tensor:
        """x [B, C, H, W], t [B], y [B] -> the predicted noise and variance [B, 2C, H, W]."""
        with self.attachment.using(residual):
            return self.denoiser(x, timestep=t, class_labels=y, return_dict=False)[0]


def units(config: DiTDiffusersConfig) -> tuple[Unit, ...]:
    from tenuto_lab.seam.attachment import units_of

    return units_of(config.to_diffusers())


def infer_config(shapes: Mapping[str, tuple[int, ...]]) -> DiTDiffusersConfig:
    raise ConfigError("not everything can be told from the tensors' shapes; put diffusers' config.json beside the file")


ARCHITECTURE = Architecture(
    name="dit-diffusers",
    title="DiT as diffusers stores it",
    config=DiTDiffusersConfig,
    published="DiT-XL/2, 256×256",
    network=AttachedDiT,
    units=units,
    infer_config=infer_config,
    signatures=("transformer_blocks.0.norm1.emb.class_embedder.embedding_table.weight",),
    asks_for="class",
    theory=ORIGINAL.theory,
    held=ORIGINAL.held,
    live=ORIGINAL.live,
    tested_with="tiny-dit under diffusers' names; the original module with the same weights",
    guidance=4.0,
    held_time=0.05,
    noise=ORIGINAL.noise,
    class_names=(CLASS, FIRST_CLASS),
    read_config=DiTDiffusersConfig.from_diffusers,
)
