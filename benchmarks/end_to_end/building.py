"""A pipeline with random weights, made on the device where it will run. Nothing is read from a disk or a hub.

The text encoders are the real classes at full size. There is no vocabulary, so a tokenizer here makes up the ids: as
many as a prompt of 50 words has, padded as the real tokenizer pads. Encoding is timed as with a real prompt.
"""

import gc
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import diffusers
import torch
import transformers
from torch import nn

from benchmarks.end_to_end.configs import FLUX, QWEN, SD3, SDXL, WAN, Design, Part

PROMPT, NEGATIVE = "a random prompt", "a random negative prompt"
WORDS = 50  # tokens of a prompt
TEMPLATE = 34  # tokens that Qwen-Image puts before each prompt, and cuts off again


@dataclass(frozen=True)
class Case:
    """A pipeline at one number of steps."""

    name: str
    design: Design
    steps: int
    step_seconds: float  # expected on an H200
    rest_seconds: float  # expected: text encoders and VAE


CASES = (  # in the order of their importance
    Case("flux-28", FLUX, 28, 0.175, 0.14),
    Case("flux-50", FLUX, 50, 0.175, 0.14),
    Case("sdxl", SDXL, 50, 0.07, 0.2),
    Case("sd3", SD3, 28, 0.08, 0.25),
    Case("qwen", QWEN, 30, 0.52, 0.4),
    Case("wan", WAN, 30, 0.35, 2.0),
)


class MadeUpWords:
    """Stands in for a tokenizer: random ids, in the shapes that a prompt of WORDS tokens has."""

    def __init__(self, vocabulary: int, longest: int, before: int = 0) -> None:
        """before: tokens of a template before each prompt"""
        self.vocabulary, self.model_max_length, self.before = vocabulary, longest, before
        self.added_tokens_encoder: dict[str, int] = {}

    def __call__(
        self, text: str | list[str], padding: Any = None, max_length: int | None = None, **_: Any
    ) -> transformers.BatchEncoding:
        rows = 1 if isinstance(text, str) else len(text)
        words = min(WORDS + self.before, max_length or self.model_max_length)
        length = max_length if padding == "max_length" and max_length else words
        generator = torch.Generator().manual_seed(len(str(text)))
        ids = torch.randint(3, self.vocabulary - 1, (rows, length), generator=generator)
        ids[:, words - 1 :] = self.vocabulary - 1  # the end of the text
        mask = torch.zeros(rows, length, dtype=torch.long)
        mask[:, :words] = 1
        return transformers.BatchEncoding({"input_ids": ids, "attention_mask": mask})

    def tokenize(self, text: str) -> list[str]:
        return text.split()


@dataclass
class Built:
    """A pipeline that can draw."""

    design: Design
    pipe: Any
    call: dict[str, Any]
    device: torch.device

    @property
    def size(self) -> str:
        frames = f"×{self.call['num_frames']}" if "num_frames" in self.call else ""
        return f"{self.call['width']}×{self.call['height']}{frames}"

    @property
    def denoiser(self) -> Any:
        return getattr(self.pipe, self.design.denoiser)

    @property
    def probe(self) -> nn.Module:
        """A module of the last block."""
        names = [name for name, _ in self.denoiser.named_modules() if re.fullmatch(self.design.probe, name)]
        found: nn.Module = self.denoiser.get_submodule(names[-1])
        return found

    def draw(self, steps: int, on_step: Callable[..., Any]) -> Any:
        prompts = {"prompt": PROMPT, **({"negative_prompt": NEGATIVE} if self.design.guided else {})}
        seed = torch.Generator(self.device).manual_seed(0)
        asked: dict[str, Any] = {"num_inference_steps": steps, "generator": seed, "output_type": "pt"}
        return self.pipe(**prompts, **self.call, **asked, callback_on_step_end=on_step)


def make(part: Part, changes: Mapping[str, Any]) -> nn.Module:
    """A network with random weights, on the default device and in the default dtype."""
    name, arguments = part
    arguments = {**arguments, **changes}
    if hasattr(diffusers, name):
        network: nn.Module = getattr(diffusers, name)(**arguments)
        return network
    kind = getattr(transformers, name)
    made: nn.Module = kind(kind.config_class(**arguments))
    return made


def cast(network: nn.Module, dtype: torch.dtype) -> None:
    """Give a network its dtype, as diffusers does when it loads one: a few parts of some networks stay in float32."""
    kept = getattr(network, "_keep_in_fp32_modules", None) if hasattr(diffusers, type(network).__name__) else None
    for name, parameter in network.named_parameters():
        wide = any(part in name.split(".") for part in kept or ())
        parameter.data = parameter.data.to(torch.float32 if wide else dtype)
    network.eval().requires_grad_(False)


def vocabulary_of(part: Part, changes: Mapping[str, Any]) -> int:
    arguments = {**part[1], **changes}
    return int(arguments.get("text_config", arguments)["vocab_size"])


def build(design: Design, device: torch.device, dtype: torch.dtype, tiny: bool, frames: int) -> Built:
    small: Mapping[str, Mapping[str, Any]] = design.small if tiny else {}
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            parts: dict[str, Any] = {name: make(part, small.get(name, {})) for name, part in design.parts.items()}
    finally:
        torch.set_default_dtype(before)
    for network in parts.values():
        cast(network, dtype)
    for name, part in design.parts.items():
        if name.startswith("text_encoder"):
            tokenizer = name.replace("text_encoder", "tokenizer")
            template = TEMPLATE if design is QWEN else 0
            longest = design.words.get(tokenizer, 77)
            parts[tokenizer] = MadeUpWords(vocabulary_of(part, small.get(name, {})), longest, template)
    kind, arguments = design.scheduler
    parts["scheduler"] = getattr(diffusers, kind)(**arguments)
    pipe = getattr(diffusers, design.pipeline)(**parts)
    pipe.set_progress_bar_config(disable=True)
    call = {**design.call, **(design.small_call if tiny else {})}
    if design is WAN:
        call["num_frames"] = 5 if tiny else frames
    return Built(design, pipe, call, device)


def free(device: torch.device) -> None:
    """Give back what nothing refers to any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
