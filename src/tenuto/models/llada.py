"""LLaDA (Nie et al., "Large Language Diffusion Models"): a masked diffusion language model.

Parameter names are those of the published checkpoints.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from tenuto.models.architecture import Architecture, ConfigError, config_from_fields
from tenuto.models.language import LanguageNetwork, block_units, check_language_config, own_fields
from tenuto.models.language_block import LanguageBlock, RMSNorm
from tenuto.scheduling.units import Unit


@dataclass(frozen=True)
class LLaDAConfig:
    """The part of LLaDA's config.json that shapes the network; the defaults are LLaDA-8B."""

    d_model: int = 4096
    n_layers: int = 32
    n_heads: int = 32
    n_kv_heads: int = 32
    mlp_hidden_size: int = 12288
    vocab_size: int = 126464
    embedding_size: int = 126464  # rows of the embedding and of the head: the vocabulary, perhaps padded
    max_sequence_length: int = 4096
    rope_theta: float = 500_000.0
    rms_norm_eps: float = 1e-5
    mask_token_id: int = 126336
    eos_token_id: int = 126081
    weight_tying: bool = False

    def __post_init__(self) -> None:
        if self.vocab_size < 1:
            raise ConfigError(f"vocab_size must be at least 1, not {self.vocab_size}")
        if self.embedding_size < self.vocab_size:
            raise ConfigError(f"embedding_size {self.embedding_size} is less than vocab_size {self.vocab_size}")
        check_language_config(self)
        if self.weight_tying:
            raise ConfigError("weight_tying is true, but only a separate head (weight_tying false) is implemented")

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads


# Other fields of published configs, and the only values of them that this network implements.
IMPLEMENTED: Mapping[str, tuple[Any, ...]] = {
    "activation_type": ("silu",),
    "alibi": (False,),
    "attention_layer_norm": (False,),
    "bias_for_layer_norm": (False, None),
    "block_group_size": (1,),
    "block_type": ("llama",),
    "clip_qkv": (None,),
    "include_bias": (False,),
    "include_qkv_bias": (False, None),
    "input_emb_norm": (False,),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "multi_query_attention": (None, False),
    "rope": (True,),
    "rope_full_precision": (True,),
    "scale_logits": (False,),
}
# Fields about training, storage and wrapping. They do not change what the network computes.
WITHOUT_EFFECT = (
    "alibi_bias_max architectures attention_dropout attention_layer_norm_with_affine auto_map dtype "
    "embedding_dropout flash_attention init_cutoff_factor init_device init_fn init_std mlp_ratio model_type "
    "pad_token_id precision residual_dropout torch_dtype transformers_version use_cache"
)


def from_published(values: Mapping[str, Any]) -> LLaDAConfig:
    """The config that a published config.json describes, or an error naming what in it is not implemented."""
    given = own_fields(LLaDAConfig, values, IMPLEMENTED, WITHOUT_EFFECT)
    # If a published config says null, another field gives the value.
    if given.get("n_kv_heads", 0) is None:
        given["n_kv_heads"] = given.get("n_heads", LLaDAConfig.n_heads)
    if given.get("embedding_size", 0) is None:
        given["embedding_size"] = given.get("vocab_size", LLaDAConfig.vocab_size)
    if given.get("mlp_hidden_size", 0) is None:
        given["mlp_hidden_size"] = int((values.get("mlp_ratio") or 4) * given.get("d_model", LLaDAConfig.d_model))
    return config_from_fields(LLaDAConfig, given)


class LLaDABlock(LanguageBlock):
    def __init__(self, name: str, config: LLaDAConfig) -> None:
        super().__init__(name, config)
        width, hidden, kv_width = config.d_model, config.mlp_hidden_size, config.n_kv_heads * config.head_dim
        self.attn_norm = RMSNorm(width, config.rms_norm_eps)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_width, bias=False)
        self.v_proj = nn.Linear(width, kv_width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.ff_norm = RMSNorm(width, config.rms_norm_eps)
        self.ff_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.ff_out = nn.Linear(hidden, width, bias=False)


class LLaDA(LanguageNetwork):
    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__()
        self.config = config
        parts = {
            "wte": nn.Embedding(config.embedding_size, config.d_model),
            "blocks": nn.ModuleList(LLaDABlock(f"blocks.{i}", config) for i in range(config.n_layers)),
            "ln_f": RMSNorm(config.d_model, config.rms_norm_eps),
            "ff_out": nn.Linear(config.d_model, config.embedding_size, bias=False),
        }
        self.model = nn.ModuleDict({"transformer": nn.ModuleDict(parts)})

    def parts(self) -> tuple[Any, Iterable[Any], Any, Any]:
        inner: Any = self.model["transformer"]
        return inner["wte"], inner["blocks"], inner["ln_f"], inner["ff_out"]

    def initialize_weights(self) -> None:
        """For training from scratch: small normal weights; a deeper network writes to the stream with smaller ones."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes = ".blocks." in name and name.endswith(("attn_out.weight", "ff_out.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * self.config.n_layers) ** 0.5 if writes else 0.02)
            else:
                nn.init.ones_(parameter)


LAYERS = {
    **{"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "attn_out"},
    **{"gate": "ff_proj", "up": "up_proj", "down": "ff_out"},
}


def units(config: LLaDAConfig) -> tuple[Unit, ...]:
    return block_units(config, "blocks", "model.transformer.blocks", LAYERS)


def infer_config(shapes: Mapping[str, tuple[int, ...]]) -> LLaDAConfig:
    raise ConfigError(
        "n_heads, rope_theta and the special tokens cannot be told from the tensors; "
        "put the model's config.json beside the file"
    )


ARCHITECTURE = Architecture(
    name="llada",
    title="LLaDA: masked diffusion language model",
    config=LLaDAConfig,
    published="LLaDA-8B",
    network=LLaDA,
    units=units,
    infer_config=infer_config,
    signatures=("model.transformer.wte.weight",),
    asks_for="prompt",
    theory="direct",
    held="attention and MLP updates",
    live="residual stream, embeddings, final norm and head",
    tested_with="small-llada; an independent float64 forward; LLaDA-8B's shapes",
    guidance=0.0,
    held_time=0.2,  # still computed: keys and values at all positions, everything at some
    read_config=from_published,
)
