"""Text to tokens and back, by the tokenizer that lies beside a language model's weights; no remote code."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenuto.errors import CheckpointError, UsageError
from tenuto.files import read_json


class TextTokenizer:
    """A `tokenizer.json`, and the chat template of `tokenizer_config.json` where there is one."""

    def __init__(self, tokenizer: Any, config: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._config = config

    def encode(self, text: str, chat: bool = False) -> list[int]:
        """The tokens of a prompt, its beginning-of-text once; `chat` wraps it as one message of a user."""
        if not chat:
            ids: list[int] = self._tokenizer.encode(text).ids
            return ids
        # A template writes the special tokens itself: adding them again would give two beginnings.
        wrapped = self._render([{"role": "user", "content": text}])
        ids = self._tokenizer.encode(wrapped, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def _render(self, messages: list[dict[str, str]]) -> str:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        template = self._config.get("chat_template")
        if not isinstance(template, str):
            raise UsageError("This model has no chat template; prompt it with plain text.")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        special = {name: self._special(name) for name in ("bos_token", "eos_token", "pad_token")}
        try:
            return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **special)
        except TemplateError as error:
            raise CheckpointError(f"The model's chat template cannot be used: {error}.") from error

    def _special(self, name: str) -> str:
        token = self._config.get(name) or ""
        return token["content"] if isinstance(token, dict) else token


def load_tokenizer(directory: Path) -> TextTokenizer:
    from tokenizers import Tokenizer

    path = directory / "tokenizer.json"
    if not path.exists():
        raise CheckpointError(f"{directory} holds no tokenizer.json, so prompts cannot be turned into tokens.")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare exceptions
        raise CheckpointError(f"{path} is no tokenizer: {error}.") from error
    beside = directory / "tokenizer_config.json"
    return TextTokenizer(tokenizer, read_json(beside, "tokenizer config") if beside.exists() else {})
