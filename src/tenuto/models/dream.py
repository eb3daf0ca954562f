"""Dream (Ye et al., "Dream 7B: Diffusion Large Language Models"): a masked diffusion language model made from Qwen2.5.

Its layers are Qwen2's, but every token attends to every other one. As in Qwen2.5, the output at
one position predicts the next token. Parameter names are those of the published checkpoints.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from tenuto.models.architecture import Architecture, ConfigError, config_from_fields
from tenuto.models.language import LanguageNetwork, block_units, check_language_config, own_fields
from tenuto.models.language_block import LanguageBlock, RMSNorm
from tenuto.scheduling.units import Unit

CONTEXT = 2048  # tokens of prompt and answer in training; the config states Qwen2.5's larger limit
# The shared layers' names of the fields -> Dream's own names.
OWN_NAMES = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "mlp_hidden_size": "intermediate_size",
    "embedding_size": "vocab_size",
    "max_sequence_length": "max_position_embeddings",
}


@dataclass(frozen=True)
class DreamConfig:
    """The part of Dream's config.json that shapes the network; the defaults are Dream-7B."""

    hidden_size: int = 3584
    num_hidden_layers: int = 28
    num_attention_heads: int = 28
    num_key_value_heads: int = 4
    intermediate_size: int = 18944
    vocab_size: int = 152064
    max_position_embeddings: int = 131072
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-6
    mask_token_id: int = 151666
    eos_token_id: int = 151643
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        check_language_config(self, OWN_NAMES)
        if self.tie_word_embeddings:
            raise ConfigError("tie_word_embeddings is true, but only a separate head (false) is implemented")

    @property
    def d_model(self) -> int:
        return self.hidden_size

    @property
    def n_layers(self) -> int:
        return self.num_hidden_layers

    @property
    def n_heads(self) -> int:
        return self.num_attention_heads

    @property
    def n_kv_heads(self) -> int:
        return self.num_key_value_heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def mlp_hidden_size(self) -> int:
        return self.intermediate_size

    @property
    def embedding_size(self) -> int:
        return self.vocab_size

    @property
    def max_sequence_length(self) -> int:
        return min(self.max_position_embeddings, CONTEXT)


# Other fields of published configs, and the only values of them that this network implements.
IMPLEMENTED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "use_mrope": (False,),
    "use_sliding_window": (False,),
}
# Fields about training, storage and wrapping. They do not change what the network computes.
WITHOUT_EFFECT = (
    "architectures attention_dropout auto_map bos_token_id dtype initializer_range max_window_layers model_type "
    "pad_token_id sliding_window torch_dtype transformers_version use_cache"
)


def from_published(values: Mapping[str, Any]) -> DreamConfig:
    """The config that a published config.json describes, or an error naming what in it is not implemented."""
    given = own_fields(DreamConfig, values, IMPLEMENTED, WITHOUT_EFFECT)
    if given.get("num_key_value_heads", 0) is None:  # null means: as many as there are heads
        given["num_key_value_heads"] = given.get("num_attention_heads", DreamConfig.num_attention_heads)
    config: DreamConfig = config_from_fields(DreamConfig, given)
    return config


class DreamLayer(LanguageBlock):
    """Qwen2's layer: q, k and v have biases, and keys are shared among heads."""

    def __init__(self, name: str, config: DreamConfig) -> None:
        super().__init__(name, config)
        width, hidden, kv_width = config.d_model, config.mlp_hidden_size, config.n_kv_heads * config.head_dim
        self.input_layernorm = RMSNorm(width, config.rms_norm_eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(width, width),
                "k_proj": nn.Linear(width, kv_width),
                "v_proj": nn.Linear(width, kv_width),
                "o_proj": nn.Linear(width, width, bias=False),
            }
        )
        self.post_attention_layernorm = RMSNorm(width, config.rms_norm_eps)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(width, hidden, bias=False),
                "up_proj": nn.Linear(width, hidden, bias=False),
                "down_proj": nn.Linear(hidden, width, bias=False),
            }
        )

    # The names that LanguageBlock uses for these layers.
    attn_norm = property(lambda self: self.input_layernorm)
    q_proj = property(lambda self: self.self_attn["q_proj"])
    k_proj = property(lambda self: self.self_attn["k_proj"])
    v_proj = property(lambda self: self.self_attn["v_proj"])
    attn_out = property(lambda self: self.self_attn["o_proj"])
    ff_norm = property(lambda self: self.post_attention_layernorm)
    ff_proj = property(lambda self: self.mlp["gate_proj"])
    up_proj = property(lambda self: self.mlp["up_proj"])
    ff_out = property(lambda self: self.mlp["down_proj"])


class Dream(LanguageNetwork):
    shift: ClassVar[int] = 1

    def __init__(self, config: DreamConfig) -> None:
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(config.vocab_size, config.hidden_size),
                "layers": nn.ModuleList(DreamLayer(f"layers.{i}", config) for i in range(config.n_layers)),
                "norm": RMSNorm(config.hidden_size, config.rms_norm_eps),
            }
        )
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def parts(self) -> tuple[Any, Iterable[Any], Any, Any]:
        layers: Any = self.model["layers"]
        return self.model["embed_tokens"], layers, self.model["norm"], self.lm_head


LAYERS = {
    **{role: f"self_attn.{role}_proj" for role in "qkvo"},
    **{role: f"mlp.{role}_proj" for role in ("gate", "up", "down")},
}


def units(config: DreamConfig) -> tuple[Unit, ...]:
    return block_units(config, "layers", "model.layers", LAYERS)


def infer_config(shapes: Mapping[str, tuple[int, ...]]) -> DreamConfig:
    raise ConfigError(
        "num_attention_heads, rope_theta and the special tokens cannot be told from the tensors; "
        "put the model's config.json beside the file"
    )


ARCHITECTURE = Architecture(
    name="dream",
    title="Dream: masked diffusion language model, made from Qwen2.5",
    config=DreamConfig,
    published="Dream-7B",
    network=Dream,
    units=units,
    infer_config=infer_config,
    signatures=("model.embed_tokens.weight",),
    asks_for="prompt",
    theory="direct",
    held="attention and MLP updates",
    live="residual stream, embeddings, final norm and head",
    tested_with="transformers' Qwen2 with random weights and full attention; Dream-7B's shapes",
    guidance=0.0,
    held_time=0.2,  # as for LLaDA
    read_config=from_published,
    remasking="entropy",  # as its authors recommend
)
