"""Miniatures of published checkpoints, in the exact layout of each: made on the spot, random, a few kilobytes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tenuto.models.llada import LLaDA, LLaDAConfig
from tenuto_lab.judging.judges import TextJudge, build_causal
from tests.conftest import random_dit, write_checkpoint

WORDS = ["<|startoftext|>", "<|endoftext|>", "a</w>", "car</w>", "cat</w>", *"acrt"]


def latent_dit(directory: Path) -> Path:
    """DiT-XL/2's kind: four latent channels, a learned variance, and its VAE beside it."""
    network = random_dit(in_channels=4, learn_sigma=True)
    for parameter in network.parameters():
        parameter.mul_(0.3)  # so that latents stay small
    write_checkpoint(directory, network, torch.bfloat16)
    vae().save_pretrained(directory / "vae")
    return directory


def latent_uvit(directory: Path) -> Path:
    """U-ViT-L's kind, in one safetensors file with its config, and its VAE beside it."""
    from safetensors.torch import save_file

    from tests.lab.networks.test_uvit import TINY, random_uvit

    network = random_uvit(in_chans=4)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "uvit", **TINY, "in_chans": 4}))
    save_file({key: (0.3 * value).contiguous() for key, value in network.state_dict().items()},
              directory / "model.safetensors")  # fmt: skip
    vae().save_pretrained(directory / "vae")
    return directory


def vae() -> Any:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    return AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4, sample_size=8)


def sdxl(directory: Path) -> Path:
    """stable-diffusion-xl-base-1.0's layout: two tokenizers, two text encoders, UNet, VAE, scheduler."""
    from diffusers import DDIMScheduler, StableDiffusionXLPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

    torch.manual_seed(0)
    directory.mkdir(parents=True)
    (directory / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(WORDS)}))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer(str(directory / "vocab.json"), str(directory / "merges.txt"), model_max_length=8)
    text = CLIPTextConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        intermediate_size=8,
        projection_dim=8,
        num_hidden_layers=2,
        num_attention_heads=1,
        max_position_embeddings=8,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 1),
        attention_head_dim=(1, 2),
        cross_attention_dim=16,  # both encoders' vectors side by side
        addition_embed_type="text_time",
        addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=32,  # 8 pooled, 6 numbers of 4
        use_linear_projection=True,
        norm_num_groups=4,
    )
    StableDiffusionXLPipeline(
        vae=vae(),
        text_encoder=CLIPTextModel(text),
        text_encoder_2=CLIPTextModelWithProjection(text),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        unet=unet,
        scheduler=DDIMScheduler(
            clip_sample=False, steps_offset=1, beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012
        ),
    ).save_pretrained(directory)
    return directory


def llada(directory: Path) -> Path:
    """LLaDA-8B-Instruct's layout: sharded safetensors with original names, config.json, tokenizer.json."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    from tests.models.test_llada import TINY

    directory.mkdir(parents=True)
    small = replace(TINY, max_sequence_length=256)
    config = {key: getattr(small, key) for key in LLaDAConfig.__dataclass_fields__}
    torch.manual_seed(0)
    network = LLaDA(small)
    network.initialize_weights()
    state = {key: value.to(torch.bfloat16).contiguous() for key, value in network.state_dict().items()}
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    placed = {key: names[i % 2] for i, key in enumerate(state)}
    for name in names:
        save_file({key: state[key] for key in state if placed[key] == name}, directory / name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    (directory / "config.json").write_text(json.dumps({"model_type": "llada", **config}))
    words = ["<s>", "</s>", *(f"w{i}" for i in range(8))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def prose(directory: Path) -> TextJudge:
    """Puts problems of three kinds into a LLaDA directory, prose to continue among them. Returns a random judge."""
    found = {
        "needle": [{"prompt": [9, *range(2, 4 + i)], "answer": [2, 3]} for i in range(4)],
        "arithmetic": [{"prompt": [9, 2 + i, 5], "answer": [4]} for i in range(4)],
        "text": [{"prompt": [9, 2 + i, *[3] * 14], "answer": [4, 5]} for i in range(4)],
    }
    (directory / "problems.json").write_text(json.dumps({"provenance": {}, "problems": found}))
    config = json.loads((directory / "config.json").read_text())
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    vocabulary = {"vocab_size": config["embedding_size"], "max_position_embeddings": 256, "tie_word_embeddings": True}
    return TextJudge(build_causal({"model_type": "llama", **sizes, **vocabulary}))


class SmallInception(nn.Module):
    """What the published TorchScript file answers: features, or probabilities without the bias of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 3, stride=2)
        self.output = nn.Linear(6, 5)

    def forward(self, img: Tensor, return_features: bool = False, no_output_bias: bool = False) -> Tensor:
        features = self.convolution(img.float() / 127.5 - 1).relu().mean(dim=[2, 3])
        if return_features:
            return features
        logits = features @ self.output.weight.T if no_output_bias else self.output(features)
        return logits.softmax(dim=1)


def scripted_inception(path: Path) -> Path:
    torch.manual_seed(0)
    torch.jit.script(SmallInception().eval()).save(str(path))
    return path
