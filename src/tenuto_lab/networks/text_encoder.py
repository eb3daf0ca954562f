"""A small text encoder for caption-conditioned UNets: a fixed vocabulary and a few transformer layers.

Its outputs are what SDXL's UNet needs: a vector for each token, and one for the whole caption.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tenuto.errors import CheckpointError, UsageError
from tenuto.files import read_json
from tenuto.models.architecture import ConfigError
from tenuto.models.layers import Attention, Mlp

PAD, START = 0, 1  # the words' numbers begin after these
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class TextConfig:
    vocabulary: tuple[str, ...]
    width: int = 128
    layers: int = 2
    heads: int = 4
    length: int = 12  # tokens: a start, the words, and padding

    def __post_init__(self) -> None:
        if not self.vocabulary or len(set(self.vocabulary)) != len(self.vocabulary):
            raise ConfigError("the vocabulary must hold some words, each once")
        for name in ("width", "layers", "heads", "length"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, not {getattr(self, name)!r}")
        if self.width % self.heads:
            raise ConfigError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.length < 2:
            raise ConfigError(f"a caption needs at least 2 tokens, not {self.length}")

    def to_json(self) -> dict[str, Any]:
        return {"model_type": "text_encoder", **asdict(self), "vocabulary": list(self.vocabulary)}


def words_of(caption: str) -> list[str]:
    """The words that an encoder sees. Whatever is no letter from a to z divides words."""
    return re.findall(r"[a-z]+", caption.lower())


class Layer(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attn = Attention(config.width, config.heads)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = Mlp(config.width, 4 * config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TextEncoder(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(2 + len(config.vocabulary), config.width)
        self.positions = nn.Parameter(torch.randn(config.length, config.width) * 0.02)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids [B, length] -> a vector for each token [B, length, D], and for the caption [B, D]."""
        x = self.tokens(ids) + self.positions
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return x, x[:, 0]

    def tokenize(self, captions: Sequence[str]) -> Tensor:
        """[len(captions), length]; guidance leads away from the empty caption."""
        return torch.tensor([self._ids(caption) for caption in captions])

    def conditions(self, captions: Sequence[str], shape: Sequence[int], dtype: torch.dtype) -> tuple[Any, ...]:
        """What SDXL's UNet needs: vectors of the tokens, one of each caption, and the size and crop of the picture."""
        device = self.positions.device
        tokens, pooled = self(self.tokenize(captions).to(device))
        sizes = torch.tensor([*shape[-2:], 0, 0, *shape[-2:]], device=device).expand(len(captions), -1)
        return tokens.to(dtype), {"text_embeds": pooled.to(dtype), "time_ids": sizes.to(dtype)}

    def _ids(self, caption: str) -> list[int]:
        words = words_of(caption)
        numbers = {word: i for i, word in enumerate(self.config.vocabulary, start=2)}
        if unknown := [word for word in words if word not in numbers]:
            known = ", ".join(self.config.vocabulary)
            raise UsageError(f"The model was never shown the word {unknown[0]!r}; the words it knows are: {known}.")
        if len(words) >= self.config.length:
            raise UsageError(f"{caption!r} has {len(words)} words; the model reads {self.config.length - 1}.")
        return [START, *(numbers[word] for word in words), *[PAD] * (self.config.length - 1 - len(words))]


def load_text_encoder(directory: Path) -> TextEncoder:
    """The text encoder stored in a directory, for inference."""
    values = read_json(directory / "config.json", "text encoder's config")
    try:
        values = {key: value for key, value in values.items() if key != "model_type"}
        config = TextConfig(**{**values, "vocabulary": tuple(values["vocabulary"])})
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"The config of {directory} makes no text encoder: {error}.") from error
    encoder = TextEncoder(config)
    try:
        state = load_file(directory / WEIGHTS)
        encoder.load_state_dict({key: value.float() for key, value in state.items()})
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"{directory / WEIGHTS} does not hold this encoder's weights: {error}") from error
    return encoder.eval().requires_grad_(False)
