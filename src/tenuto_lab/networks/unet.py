"""UNets of the Stable Diffusion kind (SDXL, SD 1.5, SD 2.1): diffusers' module, at the seam.

Parameter names are diffusers'. A checkpoint is a pipeline directory, its `unet` directory, or the original single
file. diffusers' own converter renames the single file's tensors, which are still read one at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenuto.models import is_pipeline
from tenuto.models.architecture import Architecture, ConfigError, NoiseLevels
from tenuto.runtime.residual import Residual, plain
from tenuto.scheduling.units import Unit
from tenuto_lab.networks.pipeline_texts import PipelineTexts
from tenuto_lab.networks.text_encoder import load_text_encoder
from tenuto_lab.seam.attached import Attached, DiffusersConfig, frozen

CLASS = "UNet2DConditionModel"
ORIGINAL_PREFIX = "model.diffusion_model."

SDXL_BASE: Mapping[str, Any] = {
    "sample_size": 128,
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "layers_per_block": 2,
    "transformer_layers_per_block": [1, 2, 10],
    "attention_head_dim": [5, 10, 20],
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
SD_1: Mapping[str, Any] = {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8}
SD_2: Mapping[str, Any] = {
    "sample_size": 96,
    "cross_attention_dim": 1024,
    "attention_head_dim": [5, 10, 20, 20],
    "use_linear_projection": True,
}
# SDXL's timesteps count from 1, and its last step ends at the lowest noise level, not at zero noise.
NOISE = NoiseLevels("scaled_linear", 0.00085, 0.012, offset=1, ends_clean=False)
PUBLISHED = (SDXL_BASE, SD_1, SD_2)  # the configs to try for a file that comes without one


@dataclass(frozen=True)
class UNetConfig(DiffusersConfig):
    """diffusers' UNet config; the default is SDXL's."""

    arguments: tuple[tuple[str, Any], ...] = frozen(SDXL_BASE)
    class_name = CLASS

    @classmethod
    def from_diffusers(cls, config: Mapping[str, Any]) -> "UNetConfig":
        if (kind := config.get("_class_name", CLASS)) != CLASS:
            raise ConfigError(f"it is the config of a {kind}, not of a {CLASS}")
        return cls(frozen(config))


class AttachedUNet(Attached):
    """diffusers' UNet whose forward takes a residual."""

    def forward(
        self,
        sample: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        added_cond_kwargs: dict[str, Tensor] | None = None,
        residual: Residual = plain,
    ) -> Tensor:
        """sample [B, C, H, W], timestep [B], encoder_hidden_states [B, tokens, D] -> the prediction [B, C', H, W]."""
        with self.attachment.using(residual):
            return self.denoiser(
                sample, timestep, encoder_hidden_states, added_cond_kwargs=added_cond_kwargs, return_dict=False
            )[0]


def units(config: UNetConfig) -> tuple[Unit, ...]:
    from tenuto_lab.seam.attachment import units_of

    return units_of(config.to_diffusers())


def infer_config(shapes: Mapping[str, tuple[int, ...]]) -> UNetConfig:
    """Infer the config of a published file without one; its tensors have diffusers' names or the original ones."""
    for published in PUBLISHED:
        config = UNetConfig.from_diffusers(published)
        try:
            found = {name: shapes[stored] for name, stored in stored_names(shapes, config).items()}
        except KeyError:  # the converter does not find a tensor that this config needs
            continue
        if found == expected_shapes(config):
            return config
    raise ConfigError(
        "the tensors are those of no published UNet (SDXL base, SD 1.5, SD 2.1), and not everything can be told from "
        "their shapes; put the UNet's config.json of diffusers beside the file"
    )


def expected_shapes(config: UNetConfig) -> dict[str, tuple[int, ...]]:
    from tenuto_lab.seam.attachment import build

    with torch.device("meta"):
        return {key: tuple(value.shape) for key, value in build(config.to_diffusers()).state_dict().items()}


def stored_names(shapes: Mapping[str, Any], config: UNetConfig) -> dict[str, str]:
    """For each tensor of the UNet: diffusers' name -> the name in the file."""
    if not any(key.startswith(ORIGINAL_PREFIX) for key in shapes):
        return {key: key for key in shapes}
    from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint

    # The converter only renames keys, so its values may be names instead of tensors.
    names: dict[str, str] = convert_ldm_unet_checkpoint({key: key for key in shapes}, config=config.to_diffusers())
    return names


def captions(directory: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """The text encoder beside a UNet: its pipeline's, or our own small one."""
    if is_pipeline(directory):
        return PipelineTexts(directory, device, dtype)
    return load_text_encoder(directory / "text_encoder").to(device)


ARCHITECTURE = Architecture(
    name="unet",
    title="UNet: text-conditional diffusion (SDXL, Stable Diffusion)",
    config=UNetConfig,
    published="SDXL base 1.0",
    network=AttachedUNet,
    units=units,
    infer_config=infer_config,
    signatures=("down_blocks.0.resnets.0.conv1.weight", f"{ORIGINAL_PREFIX}input_blocks.0.0.weight"),
    asks_for="caption",
    theory="heuristic",
    held="self-attention, cross-attention and feed-forward updates; branches of residual convolution blocks",
    live="residual stream, shortcut convolutions, up- and down-samplers, UNet skips, proj_in and proj_out, text",
    tested_with="tiny-sdxl; diffusers' UNet2DConditionModel on random weights; SDXL base's and SD 1.5's shapes",
    guidance=3.0,
    held_time=0.12,
    noise=NOISE,
    captions=captions,
    class_names=(CLASS,),
    read_config=UNetConfig.from_diffusers,
    stored_names=stored_names,
)
