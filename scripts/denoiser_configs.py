"""Writes down how diffusers' own tests build each of its denoisers: the small config, and the shapes of the inputs.

    python -m scripts.denoiser_configs ../diffusers-checkout     # writes tests/helpers/denoisers.json

tests/pipelines/test_every_denoiser.py builds every denoiser from this file, so that it needs no checkout.
"""

import contextlib
import importlib
import inspect
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import torch

from benchmarks.coverage import hub
from benchmarks.coverage.cases import cases_in
from benchmarks.coverage.trial import build, drawn, parts_of
from tenuto.files import write_text

OUT = Path(__file__).parent.parent / "tests" / "helpers" / "denoisers.json"
FOLDERS = ("tests/models/transformers", "tests/models/unets")
FROM_PIPELINES = {  # denoisers without a small test of their own, and a pipeline whose test makes a small one
    "DreamLiteUNetModel": "DreamLitePipeline",
    "HunyuanImageTransformer2DModel": "HunyuanImagePipeline",
    "Kandinsky3UNet": "Kandinsky3Pipeline",
    "Kandinsky5Transformer3DModel": "Kandinsky5T2IPipeline",
    "PRXTransformer2DModel": "PRXPipeline",
    "StableAudioDiTModel": "StableAudioPipeline",
    "StableCascadeUNet": "StableCascadePriorPipeline",
    "UNetSpatioTemporalConditionModel": "StableVideoDiffusionPipeline",
}


r = torch.randn
SMALLER: dict[str, dict[str, Any]] = {  # inputs in place of those that take long
    "HunyuanImageTransformer2DModel": {
        "encoder_hidden_states": r(1, 8, 32),
        "encoder_attention_mask": torch.ones(1, 8, dtype=torch.long),
        "encoder_hidden_states_2": r(1, 4, 32),
        "encoder_attention_mask_2": torch.ones(1, 4, dtype=torch.long),
    },
    "Kandinsky5Transformer3DModel": {
        "hidden_states": r(1, 1, 8, 8, 16),
        "visual_rope_pos": [torch.arange(1), torch.arange(4), torch.arange(4)],
    },
    "DreamLiteUNetModel": {"sample": r(2, 4, 8, 8)},
    "OmniGenTransformer2DModel": {"attention_mask": torch.ones(2, 41, 41)},
    "SD3Transformer2DModel": {"hidden_states": r(2, 4, 8, 8), "encoder_hidden_states": r(2, 8, 32)},
    "StableCascadeUNet": {"sample": r(2, 16, 8, 8), "clip_text": r(2, 8, 32)},
    "UNet3DConditionModel": {"sample": r(1, 4, 2, 8, 8), "encoder_hidden_states": r(1, 4, 8)},
    "UNetMotionModel": {"sample": r(1, 4, 2, 8, 8), "encoder_hidden_states": r(2, 4, 16)},
    "UNetSpatioTemporalConditionModel": {"sample": r(2, 2, 8, 8, 8)},
}
MORE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # what diffusers does not test by itself
    "BriaFibo2Transformer2DModel": (
        {
            "in_channels": 4,
            "patch_size": 2,
            "dim": 32,
            "n_layers": 2,
            "n_refiner_layers": 1,
            "n_heads": 2,
            "cap_feat_dim": 16,
            "injection_layer_ids": (1,),
            "perceiver_num_layers": 1,
            "min_num_gist_tokens": 4,
            "max_num_gist_tokens": 8,
            "gist_step": 4,
            "gist_min_text_len": 4,
            "gist_max_text_len": 16,
            "axes_dims": (4, 6, 6),
            "axes_lens": (64, 64, 64),
        },
        {"hidden_states": r(1, 4, 8, 8), "timestep": torch.tensor([0.5]), "encoder_hidden_states": r(1, 2, 8, 16)},
    ),
    "Flux3Transformer2DModel": (
        {
            "in_channels": 8,
            "cond_in_channels": 8,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 16,
            "timestep_channels": 16,
            "axes_dims_rope": (4, 4, 4, 4),
        },
        {
            "hidden_states": r(1, 16, 8),
            "encoder_hidden_states": r(1, 4, 16),
            "timestep": torch.tensor([0.5]),
            "img_ids": torch.zeros(16, 4, dtype=torch.long),
            "txt_ids": torch.zeros(4, 4, dtype=torch.long),
        },
    ),
    "I2VGenXLUNet": (
        {
            "sample_size": 8,
            "block_out_channels": (4, 8),
            "layers_per_block": 1,
            "norm_num_groups": 2,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
            "cross_attention_dim": 4,
            "attention_head_dim": 4,
            "num_attention_heads": None,
        },
        {
            "sample": r(1, 4, 2, 8, 8),
            "timestep": torch.tensor([5]),
            "fps": torch.tensor([8]),
            "image_latents": r(1, 4, 2, 8, 8),
            "image_embeddings": r(1, 4),
            "encoder_hidden_states": r(1, 5, 4),
        },
    ),
    "Kandinsky6SRTransformer3DModel": (
        {
            "in_visual_dim": 4,
            "out_visual_dim": 4,
            "time_dim": 16,
            "model_dim": 16,
            "ff_dim": 32,
            "num_visual_blocks": 1,
            "axes_dims": (4, 6, 6),
        },
        {"hidden_states": r(1, 2, 8, 8, 9), "timestep": torch.tensor([0.5])},
    ),
    "Kandinsky6Transformer3DModel": (
        {
            "in_visual_dim": 4,
            "out_visual_dim": 4,
            "in_text_dim": 16,
            "in_text_dim2": 8,
            "time_dim": 16,
            "patch_size": (1, 2, 2),
            "model_dim": 16,
            "ff_dim": 32,
            "num_text_blocks": 1,
            "num_visual_blocks": 1,
            "axes_dims": (4, 6, 6),
            "visual_cond": False,
            "in_audio_dim": 4,
            "out_audio_dim": 4,
        },
        {
            "hidden_states": r(1, 2, 8, 8, 4),
            "encoder_hidden_states": r(1, 4, 16),
            "pooled_projections": r(1, 8),
            "timestep": torch.tensor([5.0]),
        },
    ),
    "MiniMaxMusic3RVQDepthDecoder": (
        {
            "hidden_size": 16,
            "num_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "audio_vocab_size": 16,
            "num_codebooks": 2,
            "max_position_embeddings": 8,
        },
        {"inputs_embeds": r(1, 4, 16)},
    ),
    "QwenImage21Transformer2DModel": (
        {
            "patch_size": 1,
            "in_channels": 8,
            "out_channels": 8,
            "num_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "context_in_dim": 16,
            "axes_dims_rope": (4, 6, 6),
        },
        {
            "hidden_states": r(1, 16, 8),
            "encoder_hidden_states": r(1, 4, 16),
            "timestep": torch.tensor([0.5]),
            "img_shapes": [[(1, 4, 4)]],
            "img_mask": torch.tensor([[0] * 4 + [1] * 4], dtype=torch.bool),
            "encoder_hidden_states_mask": torch.ones(1, 4, dtype=torch.long),
        },
    ),
    "T5FilmDecoder": (
        {"input_dims": 8, "targets_length": 16, "d_model": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 16},
        {
            "encodings_and_masks": [(r(1, 4, 16), torch.ones(1, 4))],
            "decoder_input_tokens": r(1, 16, 8),
            "decoder_noise_time": torch.tensor([0.5]),
        },
    ),
    "Transformer2DModel": (
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "norm_num_groups": 2,
            "cross_attention_dim": 8,
            "sample_size": 8,
        },
        {"hidden_states": r(1, 4, 8, 8), "encoder_hidden_states": r(1, 3, 8)},
    ),
    "UVit2DModel": (
        {
            "hidden_size": 16,
            "cond_embed_dim": 8,
            "micro_cond_encode_dim": 4,
            "micro_cond_embed_dim": 20,
            "encoder_hidden_size": 8,
            "vocab_size": 20,
            "codebook_size": 16,
            "in_channels": 16,
            "block_out_channels": 16,
            "num_res_blocks": 1,
            "block_num_heads": 2,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "sample_size": 4,
        },
        {
            "input_ids": torch.ones(1, 4, 4, dtype=torch.long),
            "encoder_hidden_states": r(1, 3, 8),
            "pooled_text_emb": r(1, 8),
            "micro_conds": torch.ones(1, 5),
        },
    ),
    "SanaWMTransformer3DModel": (
        {
            "in_channels": 4,
            "num_layers": 1,
            "hidden_size": 24,
            "num_attention_heads": 2,
            "softmax_every_n": 1,
            "linear_head_dim": 12,
            "chunk_plucker_channels": 6,
            "chunk_plucker_post_attn_blocks": 0,
            "use_chunk_plucker_post_attn": False,
            "image_size": 64,
            "caption_channels": 8,
        },
        {
            "hidden_states": r(1, 4, 2, 4, 4),
            "timestep": torch.full((1, 1, 2), 5.0),
            "encoder_hidden_states": r(1, 1, 3, 8),
            "mask": torch.ones(1, 3, dtype=torch.long),
        },
    ),
}


def described(value: Any) -> Any:
    """An input in JSON: a tensor as its shape, kind and largest number."""
    if isinstance(value, torch.Tensor):
        known: dict[str, Any] = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        if not value.is_floating_point():
            known["values"] = value.int().tolist()
        elif value.ndim < 2 or bool((value == value.flatten()[0]).all()):  # a mask of ones
            known["values"] = value.tolist()
        return {"tensor": known}
    if isinstance(value, dict):
        return {"dict": [[key, described(one)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [described(one) for one in value]}
    if value is None or isinstance(value, str | int | float | bool):
        return {"value": value}
    raise TypeError(f"a {type(value).__name__} cannot be written down")


def made(tester: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    if hasattr(tester, "get_init_dict"):
        return tester.get_init_dict(), tester.get_dummy_inputs()
    return tester.prepare_init_args_and_inputs_for_common()


def from_pipelines(checkout: Path, wanted: dict[str, str]) -> Iterator[tuple[type, dict[str, Any], dict[str, Any]]]:
    """(class, config, inputs of its first call) of denoisers that diffusers tests only within a pipeline."""
    hub.install()
    cases, _ = cases_in(checkout)
    for name, pipeline in wanted.items():
        case = next(one for one in cases if one.pipeline == pipeline and one.module.startswith("tests.pipelines."))
        pipe, inputs = build(case)
        module: Any = next(part for part in parts_of(pipe).values() if type(part).__name__ == name)
        seen: list[dict[str, Any]] = []

        def note(module: Any, args: Any, kwargs: Any, seen: list[dict[str, Any]] = seen) -> None:
            names = list(inspect.signature(module.forward).parameters)
            seen.append({**dict(zip(names, args, strict=False)), **kwargs})

        module.register_forward_pre_hook(note, with_kwargs=True)
        with contextlib.suppress(Exception):
            drawn(pipe, inputs)
        config = {key: value for key, value in module.config.items() if not key.startswith("_")}
        if seen:
            yield type(module), config, seen[0]


@torch.no_grad()
def written(kind: Any, config: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Config and inputs in JSON, after they were tried with the installed diffusers."""
    inputs = {**inputs, **SMALLER.get(kind.__name__, {})}
    kind(**config).eval()(**inputs)
    one = {"config": config, "inputs": {key: described(value) for key, value in inputs.items()}}
    json.dumps(one)
    return one


def main(checkout: Path) -> None:
    warnings.filterwarnings("ignore")
    os.environ |= {"HF_HUB_OFFLINE": "1", "DIFFUSERS_TEST_DEVICE": "cpu"}
    sys.path.insert(0, str(checkout))
    found: dict[str, Any] = {}
    for path in sorted(file for folder in FOLDERS for file in (checkout / folder).glob("test_*.py")):
        module = importlib.import_module(".".join(path.relative_to(checkout).with_suffix("").parts))
        for tester in list(vars(module).values()):
            if not inspect.isclass(tester) or tester.__module__ != module.__name__:
                continue
            try:
                kind = getattr(tester(), "model_class", None)
            except Exception:
                continue  # only a part of a test class
            if not inspect.isclass(kind) or kind.__name__ in {*found, "UNetControlNetXSModel"}:
                continue
            try:
                config, inputs = made(tester())
                found[kind.__name__] = written(kind, config, inputs)
            except Exception as error:
                print(f"{kind.__name__}: {type(error).__name__}: {error}"[:200])
    for kind, config, inputs in from_pipelines(checkout, FROM_PIPELINES):
        try:
            found[kind.__name__] = written(kind, config, inputs)
        except Exception as error:
            print(f"{kind.__name__}: {type(error).__name__}: {error}"[:200])
    for name, (config, inputs) in MORE.items():
        found[name] = written(getattr(diffusers, name), config, inputs)
    lines = [f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
    write_text(OUT, "{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(found)} denoisers")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
