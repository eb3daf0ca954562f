"""Text to tokens and back, with the tokenizer stored beside a language model's weights; no remote code runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenuto.errors import CheckpointError, UsageError
from tenuto.files import read_json

Message = dict[str, str]  # role and content
# How Qwen2 splits text before BPE merges pairs. A directory without tokenizer.json is taken to hold Qwen2's files.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TextTokenizer:
    """A tokenizer, and the chat template of `tokenizer_config.json` where there is one."""

    def __init__(self, tokenizer: Any, config: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._config = config

    @property
    def chats(self) -> bool:
        """Whether there is a chat template."""
        return isinstance(self._config.get("chat_template"), str)

    def encode(self, text: str | Sequence[Message], chat: bool = False) -> list[int]:
        """The tokens of a prompt; the beginning-of-text token is never doubled.

        `chat` wraps the prompt as one user message. A conversation (a list of messages) is always wrapped.
        """
        plain = isinstance(text, str) and not chat
        if not plain:
            text = self._render([{"role": "user", "content": text}] if isinstance(text, str) else list(text))
        try:
            str(text).encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"The prompt {text!r} has half a character in it ({error.reason}).") from error
        # A template writes the special tokens itself: adding them again would give two beginnings.
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=plain).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def _render(self, messages: list[Message]) -> str:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if not self.chats:
            raise UsageError("This model has no chat template; prompt it with plain text.")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        special = {name: self._special(name) for name in ("bos_token", "eos_token", "pad_token")}
        try:
            return environment.from_string(self._config["chat_template"]).render(
                messages=messages, add_generation_prompt=True, **special
            )
        except TemplateError as error:
            raise CheckpointError(f"The model's chat template cannot be used: {error}.") from error

    def _special(self, name: str) -> str:
        token = self._config.get(name) or ""
        return token["content"] if isinstance(token, dict) else token


def load_tokenizer(directory: Path) -> TextTokenizer:
    """Load a `tokenizer.json`, or else Qwen2's `vocab.json` and `merges.txt`, which Dream is published with."""
    from tokenizers import Tokenizer

    beside = directory / "tokenizer_config.json"
    config = read_json(beside, "tokenizer config") if beside.exists() else {}
    path, vocabulary, merges = (directory / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    if not path.exists() and not (vocabulary.exists() and merges.exists()):
        raise CheckpointError(
            f"{directory} holds no tokenizer.json, and no vocab.json with a merges.txt either, so prompts cannot be "
            "turned into tokens."
        )
    try:
        tokenizer = Tokenizer.from_file(str(path)) if path.exists() else _of_pairs(vocabulary, merges, config)
    except Exception as error:  # the library raises bare exceptions
        raise CheckpointError(f"{path if path.exists() else vocabulary} is no tokenizer: {error}.") from error
    return TextTokenizer(tokenizer, config)


def _of_pairs(vocabulary: Path, merges: Path, config: dict[str, Any]) -> Any:
    """Qwen2's tokenizer: byte-level BPE within words, and the added tokens that the config lists."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE

    tokenizer = Tokenizer(BPE.from_file(str(vocabulary), str(merges), fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for number, added in sorted(config.get("added_tokens_decoder", {}).items(), key=lambda one: int(one[0])):
        token = AddedToken(**{name: added[name] for name in ("content", "single_word", "lstrip", "rstrip", "special")})
        (tokenizer.add_special_tokens if added["special"] else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(added["content"]) != int(number):
            raise ValueError(f"the token {added['content']} is not the {number}th")
    return tokenizer
