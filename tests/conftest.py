"""What the tests share: small models made on the spot, and the rule that GPU tests need a GPU."""

import json
import os
from pathlib import Path

import hypothesis
import pytest
import torch
from safetensors.torch import save_file

from tenuto.models.dit import DiT, DiTConfig

hypothesis.settings.register_profile("tests", deadline=None)  # how long an example takes is no test's concern
hypothesis.settings.load_profile("tests")

if "PYTEST_XDIST_WORKER" in os.environ:  # one of several processes, which share the cores
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the programs that tests start
    os.environ.pop("COLUMNS", None)  # of the terminal that pytest was started in; the tests say how wide theirs is

TINY = {
    "input_size": 8,
    "patch_size": 2,
    "in_channels": 1,
    "hidden_size": 16,
    "depth": 3,
    "num_heads": 2,
    "num_classes": 4,
    "learn_sigma": False,
}


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """A test draws the same random numbers whichever tests ran before it."""
    torch.manual_seed(0)


def random_dit(seed: int = 0, **changes: object) -> DiT:
    """A small DiT in which every unit and every gate does something."""
    torch.manual_seed(seed)
    network = DiT(DiTConfig(**{**TINY, **changes}))
    for parameter in network.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    return network.eval().requires_grad_(False)


def write_checkpoint(directory: Path, network: DiT, dtype: torch.dtype = torch.float32, shards: int = 1) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    changes = {k: getattr(network.config, k) for k in TINY}
    (directory / "config.json").write_text(json.dumps({"model_type": "dit", **changes}))
    state = {key: value.to(dtype).contiguous() for key, value in network.state_dict().items()}
    if shards == 1:
        save_file(state, directory / "model.safetensors")
        return directory
    index = {}
    keys = list(state)
    for i in range(shards):
        name = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {key: state[key] for key in keys[i::shards]}
        save_file(part, directory / name)
        index.update(dict.fromkeys(part, name))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return directory


@pytest.fixture
def network() -> DiT:
    return random_dit()


@pytest.fixture
def checkpoint(tmp_path: Path, network: DiT) -> Path:
    return write_checkpoint(tmp_path / "dit", network)


@pytest.fixture
def pipeline_directory(tmp_path):
    """A Stable Diffusion pipeline in diffusers' layout, every part of it tiny and random."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(0)
    words = ["<|startoftext|>", "<|endoftext|>", "a</w>", "car</w>", *"acr"]
    (tmp_path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), model_max_length=8)
    text = CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=8,
        bos_token_id=0,
        eos_token_id=1,
    )
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 8),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=8,
        attention_head_dim=2,
        norm_num_groups=4,
    )
    pipe = StableDiffusionPipeline(
        vae=AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4),
        text_encoder=CLIPTextModel(text),
        tokenizer=tokenizer,
        unet=unet,
        scheduler=DDIMScheduler(clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.save_pretrained(tmp_path / "pipeline")
    return tmp_path / "pipeline"
