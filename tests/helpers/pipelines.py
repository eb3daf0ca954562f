"""diffusers' pipelines, small, with random weights and without tokenizers: they are called with embedded prompts."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLWan,
    DDIMScheduler,
    DiffusionPipeline,
    DiTPipeline,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    PixArtSigmaPipeline,
    PixArtTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from torch import Tensor, nn

import tenuto
from tenuto.models.diffusers.denoisers import names_in
from tenuto.runtime.private_torch import inner_module
from tenuto_lab.seam.blocks import sites_of
from tests.helpers.denoisers import SD_1, SDXL, make

QUIET = [
    pytest.mark.filterwarnings("ignore:Only .* of .* steps computes? everything"),  # these generations are short
    pytest.mark.filterwarnings("ignore:.* steps? (are|is) evaluated"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # diffusers', of its own configs
]
EVERY_FOURTH = [True, False, False, False] * 3  # what `every=4` computes of the twelve steps that `draw` takes
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
TWO_LEVELS: dict[str, Any] = {"block_out_channels": [8, 16], "layers_per_block": 1}
SMALL_SD_1 = {**SD_1, **TWO_LEVELS, "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"]}
SMALL_SD_1 |= {"up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]}
SMALL_SDXL = {**SDXL, **TWO_LEVELS, "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"]}
SMALL_SDXL |= {"up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "transformer_layers_per_block": [1, 1]}
SMALL_SDXL |= {"attention_head_dim": [1, 2]}
PIXART = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 8, "num_layers": 2}
PIXART |= {"cross_attention_dim": 16, "sample_size": 8, "caption_channels": 12}
SD3 = {"sample_size": 8, "patch_size": 2, "in_channels": 4, "out_channels": 4, "num_layers": 3}
SD3 |= {"attention_head_dim": 8, "num_attention_heads": 2, "joint_attention_dim": 12, "caption_projection_dim": 16}
SD3 |= {"pooled_projection_dim": 10, "pos_embed_max_size": 8, "dual_attention_layers": (0,), "qk_norm": "rms_norm"}
FLUX = {"patch_size": 1, "in_channels": 16, "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 16}
FLUX |= {"num_attention_heads": 2, "joint_attention_dim": 12, "pooled_projection_dim": 10, "axes_dims_rope": (4, 4, 8)}
WAN = {"patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 16}
WAN |= {"out_channels": 16, "text_dim": 12, "freq_dim": 16, "ffn_dim": 32, "num_layers": 2, "rope_max_seq_len": 32}

TRANSFORMERS: dict[str, Any] = {
    "pixart": (PixArtTransformer2DModel, PIXART),
    "sd3": (SD3Transformer2DModel, SD3),
    "flux": (FluxTransformer2DModel, FLUX),
    "wan": (WanTransformer3DModel, WAN),
}
FAMILIES = ("sd1", "sdxl", "dit", *TRANSFORMERS)


def unet(config: dict[str, Any]) -> UNet2DConditionModel:
    torch.manual_seed(0)
    return UNet2DConditionModel(**config).eval()


def transformer(family: str) -> nn.Module:
    kind, config = TRANSFORMERS[family]
    torch.manual_seed(0)
    network = kind(**config).eval()
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)  # every branch and every gate must matter
    return network


def tiny_vae(channels: int = 4) -> AutoencoderKL:
    torch.manual_seed(0)
    return AutoencoderKL(
        block_out_channels=(8,), norm_num_groups=4, latent_channels=channels, sample_size=8, shift_factor=0.0
    ).eval()


def tiny(family: str) -> DiffusionPipeline:
    pipe = _tiny(family)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _tiny(family: str) -> DiffusionPipeline:
    nothing: dict[str, Any] = {"text_encoder": None, "tokenizer": None}
    second: dict[str, Any] = {**nothing, "text_encoder_2": None, "tokenizer_2": None}
    if family == "sd1":
        return StableDiffusionPipeline(
            vae=tiny_vae(),
            unet=unet(SMALL_SD_1),
            scheduler=DDIMScheduler(**BETAS, clip_sample=False),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
            **nothing,
        )
    if family == "sdxl":
        euler = EulerDiscreteScheduler(**BETAS)
        return StableDiffusionXLPipeline(
            vae=tiny_vae(), unet=unet(SMALL_SDXL), scheduler=euler, add_watermarker=False, **second
        )
    if family == "dit":
        return DiTPipeline(make("dit"), tiny_vae(), DDIMScheduler(clip_sample=False))
    network = transformer(family)
    if family == "pixart":
        return PixArtSigmaPipeline(
            vae=tiny_vae(), transformer=network, scheduler=DPMSolverMultistepScheduler(), **nothing
        )
    flow = FlowMatchEulerDiscreteScheduler()
    if family == "sd3":
        third = {**second, "text_encoder_3": None, "tokenizer_3": None}
        return StableDiffusion3Pipeline(transformer=network, scheduler=flow, vae=tiny_vae(), **third)
    if family == "flux":
        return FluxPipeline(scheduler=flow, vae=tiny_vae(), transformer=network, **second)
    torch.manual_seed(0)
    video = AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    unipc = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
    return WanPipeline(vae=video.eval(), transformer=network, scheduler=unipc, **nothing)


def two_experts(boundary: float = 0.9) -> DiffusionPipeline:
    """Wan 2.2: one transformer for the noisy steps, another for the rest."""
    pipe = tiny("wan")
    second = transformer("wan")
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(0.8)
    pipe.register_modules(transformer_2=second)
    pipe.register_to_config(boundary_ratio=boundary)
    return pipe


def prompt(family: str, seed: int = 0, batch: int = 1) -> dict[str, Any]:
    """What a pipeline draws from."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator)

    if family == "dit":
        return {"class_labels": [seed % 1000] * batch}
    width = 12 if family in TRANSFORMERS else 16
    words = {"prompt_embeds": normal(5, width)}
    if family != "flux":
        words["negative_prompt_embeds"] = normal(5, width)
    if family == "pixart":
        words |= {"prompt_attention_mask": torch.ones(batch, 5), "negative_prompt_attention_mask": torch.ones(batch, 5)}
        return words | {"negative_prompt": None, "use_resolution_binning": False, "height": 8, "width": 8}
    if family in ("sdxl", "sd3"):
        pooled = 10 if family == "sd3" else 16
        words |= {"pooled_prompt_embeds": normal(pooled), "negative_pooled_prompt_embeds": normal(pooled)}
    if family == "flux":
        words |= {"pooled_prompt_embeds": normal(10), "height": 8, "width": 8}
    if family == "wan":
        words |= {"height": 16, "width": 16, "num_frames": 5}
    return words


def draw(
    pipe: DiffusionPipeline, family: str, steps: int = 12, seed: int = 0, batch: int = 1, **options: Any
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    asked = {
        key: one.to(pipe._execution_device) if isinstance(one, Tensor) else one
        for key, one in prompt(family, seed, batch).items()
    }
    call = {**asked, "num_inference_steps": steps, "generator": generator, "output_type": "pt"}
    result = pipe(**{**call, **options})
    return tensor(result.frames if family == "wan" else result.images)


def switched_off(at: int) -> dict[str, Any]:
    """Guidance that is switched off in a callback, as diffusers' guide does it, halves the batch."""

    def off(pipe: Any, step: int, t: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
        if step == at:
            pipe._guidance_scale = 0.0
            given["prompt_embeds"] = given["prompt_embeds"].chunk(2)[-1]
        return given

    return {"callback_on_step_end": off, "callback_on_step_end_tensor_inputs": ["prompt_embeds"]}


def tensor(images: Any) -> Tensor:
    """As DiTPipeline gives them from diffusers 0.41 on; before, it gives arrays, whatever output_type says."""
    return images if isinstance(images, Tensor) else torch.from_numpy(images).permute(0, 3, 1, 2)


def evaluation(family: str) -> dict[str, Any]:
    """What a pipeline gives its transformer at a step, without values."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    if family == "dit":
        return {
            "hidden_states": empty(2, 4, 8, 8),
            "timestep": empty(2),
            "class_labels": empty(2, dtype=torch.long),
        }
    given = {"encoder_hidden_states": empty(2, 5, 12), "timestep": empty(2)}
    if family == "flux":
        ids = {"img_ids": empty(16, 3), "txt_ids": empty(5, 3)}
        given |= {"hidden_states": empty(2, 16, FLUX["in_channels"]), **ids}
    elif family == "wan":
        given["hidden_states"] = empty(2, 16, 2, 2, 2)
    else:
        given["hidden_states"] = empty(2, 4, 8, 8)
    if family in ("sd3", "flux"):
        given["pooled_projections"] = empty(2, 10)
    if family == "pixart":
        given["added_cond_kwargs"] = {"resolution": None, "aspect_ratio": None}
    return given


def attributes(pipe: DiffusionPipeline) -> dict[str, dict[str, Any]]:
    """What a denoiser has by itself; of a pipeline and its scheduler, whose every loop leaves something behind, the
    names."""
    modules = dict(denoiser_in(pipe).named_modules())
    found = {name: {key: id(value) for key, value in vars(one).items()} for name, one in modules.items()}
    return {**found, "pipe": dict.fromkeys(vars(pipe), 0), "scheduler": dict.fromkeys(vars(pipe.scheduler), 0)}


def parts_of(pipe: DiffusionPipeline) -> dict[str, Any]:
    """What a pipeline is made of, for another pipeline of the same family."""
    return {name: value for name, value in pipe.components.items() if name != "image_encoder"}


def other(kind: Any, family: str = "sd1", pipe: DiffusionPipeline | None = None, **parts: Any) -> Any:
    """A pipeline of another kind, of the same parts."""
    options = {"requires_safety_checker": False} if family == "sd1" else {}
    made = kind(**{**parts_of(tiny(family) if pipe is None else pipe), **parts}, **options)
    made.set_progress_bar_config(disable=True)
    return made


def computed_steps(pipe: DiffusionPipeline) -> list[int]:
    """The steps of the last generation that evaluated everything."""
    return [step for step, one in enumerate(tenuto.summary(pipe).per_step) if one.work == 1]


def denoiser_in(pipe: DiffusionPipeline) -> Any:
    return getattr(pipe, names_in(pipe)[0])


@contextmanager
def counted(pipe: DiffusionPipeline) -> Iterator[Counter[str]]:
    """How often the last matrix of each branch is used."""
    module, counts = inner_module(denoiser_in(pipe)), Counter[str]()
    handles = [
        module.get_submodule(unit.tensors()[-1].removesuffix(".weight")).register_forward_hook(
            lambda *_, name=unit.name: counts.update([name])
        )
        for site in sites_of(module)
        for unit in site.units
    ]
    yield counts
    for handle in handles:
        handle.remove()


def picture(side: int = 8) -> Tensor:
    return torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(1))
