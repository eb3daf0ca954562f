"""The networks of each pipeline, as their published config.json files describe them, and miniatures of them.

A part is (class, arguments). The class is looked up in diffusers, then in transformers. Text encoders are named by
their transformers class; the arguments of their config class are given. A miniature changes some of the arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tenuto_lab.networks.unet import SDXL_BASE

Part = tuple[str, Mapping[str, Any]]

CLIP_L: Part = (
    "CLIPTextModel",
    {
        "vocab_size": 49408,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "projection_dim": 768,
    },
)
CLIP_L_PROJECTED: Part = ("CLIPTextModelWithProjection", CLIP_L[1])
CLIP_G: Part = (
    "CLIPTextModelWithProjection",
    {
        "vocab_size": 49408,
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_hidden_layers": 32,
        "num_attention_heads": 20,
        "projection_dim": 1280,
        "hidden_act": "gelu",
    },
)
T5_XXL: Part = (
    "T5EncoderModel",
    {
        "vocab_size": 32128,
        "d_model": 4096,
        "d_ff": 10240,
        "d_kv": 64,
        "num_heads": 64,
        "num_layers": 24,
        "feed_forward_proj": "gated-gelu",
    },
)
UMT5_XXL: Part = ("UMT5EncoderModel", {**T5_XXL[1], "vocab_size": 256384})
QWEN_7B: Part = (
    "Qwen2_5_VLForConditionalGeneration",
    {
        "text_config": {
            "vocab_size": 152064,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"},
            "rope_theta": 1000000.0,
        },
        "vision_config": {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 3584,
        },
    },
)

# Miniatures
SMALL_CLIP = {
    "vocab_size": 1000,
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "projection_dim": 32,
}
SMALL_T5 = {"vocab_size": 1000, "d_model": 32, "d_ff": 37, "d_kv": 8, "num_heads": 4, "num_layers": 2}
SMALL_QWEN = {
    "text_config": {
        "vocab_size": 1000,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
        "rope_theta": 1000000.0,
    },
    "vision_config": {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 16,
    },
}
SMALL_VAE = {"block_out_channels": [8, 8, 8, 8], "norm_num_groups": 1, "layers_per_block": 1}
SMALL_VIDEO_VAE = {"base_dim": 3, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}


def image_vae(channels: int, scaling: float, **more: Any) -> Part:
    return (
        "AutoencoderKL",
        {
            "block_out_channels": [128, 256, 512, 512],
            "down_block_types": ["DownEncoderBlock2D"] * 4,
            "up_block_types": ["UpDecoderBlock2D"] * 4,
            "layers_per_block": 2,
            "latent_channels": channels,
            "sample_size": 1024,
            "scaling_factor": scaling,
            **more,
        },
    )


@dataclass(frozen=True)
class Design:
    """A pipeline: its class, its networks, its scheduler, and how it is called."""

    title: str
    pipeline: str
    denoiser: str  # the name of the part
    parts: Mapping[str, Part]
    scheduler: Part
    call: Mapping[str, Any]  # arguments besides prompt and steps
    small: Mapping[str, Mapping[str, Any]]  # part -> changed arguments
    small_call: Mapping[str, Any]
    words: Mapping[str, int] = field(default_factory=dict)  # tokenizer -> its longest text, if that is not 77
    guided: bool = True  # whether it is called with a negative prompt
    probe: str = ""  # a module of the last block; it runs if and only if the whole network is computed
    build_seconds: float = 10.0  # expected on an H200


FLUX = Design(
    "FLUX.1-dev",
    "FluxPipeline",
    "transformer",
    {
        "transformer": ("FluxTransformer2DModel", {"guidance_embeds": True}),  # its other defaults are FLUX.1's
        "text_encoder": CLIP_L,
        "text_encoder_2": T5_XXL,
        "vae": image_vae(16, 0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
    },
    (
        "FlowMatchEulerDiscreteScheduler",
        {"shift": 3.0, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15},
    ),
    {"height": 1024, "width": 1024, "guidance_scale": 3.5},
    {
        "transformer": {
            "num_layers": 2,
            "num_single_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": [4, 4, 8],
        },
        "text_encoder": SMALL_CLIP,
        "text_encoder_2": SMALL_T5,
        "vae": SMALL_VAE,
    },
    {"height": 32, "width": 32, "max_sequence_length": 64},
    words={"tokenizer_2": 512},
    guided=False,
    probe=r"single_transformer_blocks\.\d+\.attn\.to_q",
    build_seconds=4.0,
)
SDXL = Design(
    "SDXL",
    "StableDiffusionXLPipeline",
    "unet",
    {
        "unet": ("UNet2DConditionModel", SDXL_BASE),
        "text_encoder": CLIP_L,
        "text_encoder_2": CLIP_G,
        "vae": image_vae(4, 0.13025),
    },
    (
        "EulerDiscreteScheduler",
        {
            "beta_start": 0.00085,
            "beta_end": 0.012,
            "beta_schedule": "scaled_linear",
            "steps_offset": 1,
            "timestep_spacing": "leading",
        },
    ),
    {"height": 1024, "width": 1024, "guidance_scale": 5.0},
    {
        "unet": {
            "sample_size": 32,
            "block_out_channels": [32, 64, 64],
            "attention_head_dim": [1, 2, 2],
            "transformer_layers_per_block": [1, 1, 2],
            "cross_attention_dim": 64,
            "projection_class_embeddings_input_dim": 6 * 8 + 32,
            "addition_time_embed_dim": 8,
        },
        "text_encoder": SMALL_CLIP,
        "text_encoder_2": SMALL_CLIP,
        "vae": SMALL_VAE,
    },
    {"height": 32, "width": 32},
    probe=r"up_blocks\.1\.attentions\.\d+\.transformer_blocks\.\d+\.attn1\.to_q",
    build_seconds=4.0,
)
SD3 = Design(
    "SD3.5-medium",
    "StableDiffusion3Pipeline",
    "transformer",
    {
        "transformer": (
            "SD3Transformer2DModel",
            {
                "sample_size": 128,
                "patch_size": 2,
                "in_channels": 16,
                "out_channels": 16,
                "num_layers": 24,
                "attention_head_dim": 64,
                "num_attention_heads": 24,
                "joint_attention_dim": 4096,
                "caption_projection_dim": 1536,
                "pooled_projection_dim": 2048,
                "pos_embed_max_size": 384,
                "dual_attention_layers": tuple(range(13)),
                "qk_norm": "rms_norm",
            },
        ),
        "text_encoder": CLIP_L_PROJECTED,
        "text_encoder_2": CLIP_G,
        "text_encoder_3": T5_XXL,
        "vae": image_vae(16, 1.5305, shift_factor=0.0609, use_quant_conv=False, use_post_quant_conv=False),
    },
    ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
    {"height": 1024, "width": 1024, "guidance_scale": 4.5},
    {
        "transformer": {
            "sample_size": 32,
            "num_layers": 3,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "joint_attention_dim": 64,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 64,
            "pos_embed_max_size": 96,
            "dual_attention_layers": (0,),
        },
        "text_encoder": SMALL_CLIP,
        "text_encoder_2": SMALL_CLIP,
        "text_encoder_3": {**SMALL_T5, "d_model": 64},
        "vae": SMALL_VAE,
    },
    {"height": 32, "width": 32, "max_sequence_length": 64},
    words={"tokenizer_3": 256},
    probe=r"transformer_blocks\.\d+\.attn\.to_q",
    build_seconds=5.0,
)
QWEN = Design(
    "Qwen-Image",
    "QwenImagePipeline",
    "transformer",
    {
        "transformer": ("QwenImageTransformer2DModel", {"guidance_embeds": False}),  # the defaults are Qwen-Image's
        "text_encoder": QWEN_7B,
        "vae": ("AutoencoderKLQwenImage", {}),  # the defaults are Qwen-Image's
    },
    (
        "FlowMatchEulerDiscreteScheduler",
        {
            "use_dynamic_shifting": True,
            "base_shift": 0.5,
            "max_shift": 0.9,
            "max_image_seq_len": 8192,
            "shift_terminal": 0.02,
        },
    ),
    {"height": 1024, "width": 1024, "true_cfg_scale": 4.0},
    {
        "transformer": {
            "num_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 16,
            "axes_dims_rope": (8, 4, 4),
        },
        "text_encoder": SMALL_QWEN,
        "vae": SMALL_VIDEO_VAE,
    },
    {"height": 32, "width": 32},
    words={"tokenizer": 1024},
    probe=r"transformer_blocks\.\d+\.attn\.to_q",
    build_seconds=7.0,
)
WAN = Design(
    "Wan 2.1 1.3B",
    "WanPipeline",
    "transformer",
    {
        "transformer": (
            "WanTransformer3DModel",
            {"num_attention_heads": 12, "attention_head_dim": 128, "ffn_dim": 8960, "num_layers": 30},
        ),
        "text_encoder": UMT5_XXL,
        "vae": ("AutoencoderKLWan", {}),  # the defaults are Wan 2.1's
    },
    (
        "UniPCMultistepScheduler",
        {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0},
    ),
    {"height": 480, "width": 832, "guidance_scale": 5.0},
    {
        "transformer": {
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "ffn_dim": 32,
            "num_layers": 2,
            "text_dim": 32,
            "rope_max_seq_len": 32,
        },
        "text_encoder": SMALL_T5,
        "vae": SMALL_VIDEO_VAE,
    },
    {"height": 16, "width": 16, "max_sequence_length": 64},
    words={"tokenizer": 512},
    probe=r"blocks\.\d+\.attn1\.to_q",
    build_seconds=5.0,
)
