"""Stand-ins for what diffusers' tests load from the hub: tokenizers, configs and tiny text encoders, made on the spot.

The text encoders are random anyway, so a tokenizer that maps characters to numbers serves as well as the real one.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<|endoftext|>", "[MASK]", "<image>", "<|mask|>", "<IMG_CONTEXT>", "<start_of_image>", "<image_soft_token>")
CHAT = (
    "{% for message in messages %}{{ message['role'] }}: "
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


QWEN = {"<|im_start|>": 151644, "<|im_end|>": 151645, "<|vision_start|>": 151652, "<|vision_end|>": 151653}
QWEN |= {"<|image_pad|>": 151655, "<|video_pad|>": 151656}  # where the configs in the tests expect these tokens


def tokenizer(longest: int = 512, qwen: bool = False, **options: Any) -> Any:
    """A tokenizer of single characters with about 120 tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "</s>", "<s>", "<unk>"]
    words = [*special, "\n", *(chr(code) for code in range(32, 127)), *VISION, *MARKS]
    numbered = {word: place for place, word in enumerate(words)} | (QWEN if qwen else {})
    made = Tokenizer(models.WordLevel(numbered, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    result = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="</s>",
        bos_token="<s>",
        unk_token="<unk>",
        additional_special_tokens=[*VISION, *MARKS],
        model_max_length=options.get("model_max_length", longest),
        padding_side=options.get("padding_side", "right"),
        chat_template=CHAT,
    )
    result.image_token, result.video_token = "<|image_pad|>", "<|video_pad|>"
    result.image_token_id = result.convert_tokens_to_ids("<|image_pad|>")
    result.video_token_id = result.convert_tokens_to_ids("<|video_pad|>")
    result.vision_start_token_id = result.convert_tokens_to_ids("<|vision_start|>")
    result.vision_end_token_id = result.convert_tokens_to_ids("<|vision_end|>")
    return result


def config_for(name: str) -> Any:
    """The config that a tiny model of the hub has, as far as the pipelines' denoisers depend on it."""
    tf: Any = importlib.import_module("transformers")

    low = name.lower()
    small: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    if "umt5" in low:
        return tf.UMT5Config(vocab_size=1103, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    if "t5" in low:
        return tf.T5Config(vocab_size=1103, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    if "bert" in low:
        return tf.BertConfig(vocab_size=1124, max_position_embeddings=512, **small)
    if "llama" in low:
        return tf.LlamaConfig(vocab_size=1000, num_key_value_heads=4, hidden_size=16, intermediate_size=64,
                              num_hidden_layers=2, num_attention_heads=4)  # fmt: skip
    if "siglip" in low:
        return tf.SiglipVisionConfig(image_size=30, patch_size=2, **{**small, "intermediate_size": 37})
    if "gemma3" in low:
        text = {**small, "vocab_size": 1000, "num_key_value_heads": 2, "head_dim": 8}
        return tf.Gemma3Config(text_config=text, vision_config={**small, "image_size": 14, "patch_size": 7})
    if "chatglm" in low:
        from diffusers.pipelines.kolors.text_encoder import ChatGLMConfig

        return ChatGLMConfig(num_layers=2, padded_vocab_size=1000, hidden_size=8, ffn_hidden_size=64, kv_channels=4,
                             num_attention_heads=2, seq_length=512, multi_query_attention=True,
                             multi_query_group_num=1, original_rope=True, rmsnorm=True)  # fmt: skip
    if "qwen2vl" in low or "qwen3vl" in low:
        kind = tf.Qwen2VLConfig if "qwen2vl" in low else tf.Qwen3VLConfig
        rope = {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"}
        text = {**small, "num_key_value_heads": 2, "vocab_size": 152064, "rope_scaling": rope, "head_dim": 8}
        text |= {"hidden_size": 16, "num_attention_heads": 2}
        sight: dict[str, Any] = {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": 16,
        }
        sight |= {"deepstack_visual_indexes": [0]} if "qwen3vl" in low else {"embed_dim": 32}
        return kind(text_config=text, vision_config=sight)
    raise OSError(f"There is no stand-in for {name}.")


def _model(cls: Any, name: str, *_: Any, **options: Any) -> Any:
    import torch

    torch.manual_seed(0)
    model = cls(config_for(str(name))).eval()
    dtype = options.get("torch_dtype") or options.get("dtype")
    return model if dtype is None else model.to(dtype)


def _tokenizer(cls: Any, name: str, *_: Any, **options: Any) -> Any:
    options.pop("subfolder", None)
    if cls.__name__.startswith("ChatGLM"):
        return _with_positions(tokenizer())
    return tokenizer(77 if "CLIP" in cls.__name__ else 512, "qwen" in f"{cls.__name__} {name}".lower(), **options)


def _with_positions(made: Any) -> Any:
    """A tokenizer that also numbers the tokens, as ChatGLM's does."""
    import torch

    class Numbering(type(made)):  # type: ignore[misc]
        def __call__(self, *args: Any, **options: Any) -> Any:
            result = super().__call__(*args, **options)
            ids = result["input_ids"]
            result["position_ids"] = torch.arange(ids.shape[1]).expand_as(ids)
            return result

    made.__class__ = Numbering
    return made


def _config(cls: Any, name: str, *_: Any, **options: Any) -> Any:
    return config_for(str(name))


def _processor(cls: Any, name: str, *_: Any, **options: Any) -> Any:
    """A processor of pictures and text: the class's own, around the stand-in tokenizer."""
    tf: Any = importlib.import_module("transformers")

    kind = cls
    if cls is tf.AutoProcessor:
        kind = tf.PixtralProcessor if "mistral" in str(name).lower() else tf.Qwen2VLProcessor
    qwen = kind.__name__.startswith(("Qwen2", "Qwen3"))
    parts: dict[str, Any] = {"tokenizer": tokenizer(qwen=qwen), "chat_template": CHAT}
    if qwen:
        small = {"min_pixels": 28 * 28, "max_pixels": 56 * 56}
        parts["image_processor"] = tf.Qwen2VLImageProcessor(**small)
        video = "Qwen3VLVideoProcessor" if kind.__name__.startswith("Qwen3") else "Qwen2VLVideoProcessor"
        parts["video_processor"] = getattr(tf, video)()
    elif kind.__name__.startswith("Pixtral"):
        parts["image_processor"] = tf.PixtralImageProcessor()
    return kind(**parts)


def _plain(cls: Any, name: str, *_: Any, **options: Any) -> Any:
    options.pop("subfolder", None)
    if cls.__name__.startswith("DPT"):
        options |= {"size": {"height": 32, "width": 32}}
    return cls(**options)


def install() -> None:
    """Replace `from_pretrained` where diffusers' tests need the hub; a local folder is still read."""
    tf: Any = importlib.import_module("transformers")
    from transformers.feature_extraction_utils import FeatureExtractionMixin
    from transformers.image_processing_base import ImageProcessingMixin
    from transformers.processing_utils import ProcessorMixin

    kinds: list[tuple[Any, Callable[..., Any]]] = [
        (tf.PreTrainedTokenizerBase, _tokenizer),
        (tf.AutoTokenizer, _tokenizer),
        (tf.PretrainedConfig, _config),
        (tf.AutoConfig, _config),
        (tf.PreTrainedModel, _model),
        (ProcessorMixin, _processor),
        (tf.AutoProcessor, _processor),
        (ImageProcessingMixin, _plain),
        (FeatureExtractionMixin, _plain),
    ]
    for kind, made in kinds:
        original = kind.from_pretrained.__func__
        kind.from_pretrained = classmethod(partial(_from, original, made))


QWEN_EDITORS = (
    "pipelines.qwenimage.pipeline_qwenimage_edit",
    "pipelines.qwenimage.pipeline_qwenimage_edit_inpaint",
    "pipelines.qwenimage.pipeline_qwenimage_edit_plus",
    "pipelines.qwenimage.pipeline_qwenimage_layered",
    "modular_pipelines.qwenimage.encoders",
)
LARGEST_PICTURE = 64 * 64


def shrink_pictures() -> None:
    """Let the editing pipelines of Qwen-Image take small pictures. They enlarge all to a megapixel: minutes on a core.

    Only the function that computes the two sides is replaced, so their loops are untouched.
    """
    for name in QWEN_EDITORS:
        module = importlib.import_module(f"diffusers.{name}")
        vars(module)["calculate_dimensions"] = partial(_sides, vars(module)["calculate_dimensions"])


def _sides(original: Callable[..., Any], area: float, ratio: float) -> Any:
    return original(min(area, LARGEST_PICTURE), ratio)


def _from(
    original: Callable[..., Any], made: Callable[..., Any], cls: Any, name: Any, *args: Any, **options: Any
) -> Any:
    from pathlib import Path

    if Path(str(name)).exists():
        return original(cls, name, *args, **options)
    return made(cls, name, *args, **options)
