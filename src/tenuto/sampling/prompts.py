"""Prompts as one batch of tokens, and what can be refused before anything is computed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.models.language import LanguageConfig
from tenuto.runtime.executor import Executor
from tenuto.sampling.settings import MaskedSampling


class Canvas:
    """A batch of prompts padded on the left, each followed by masks.

    tokens   [B, N]
    real     bool [B, N], False at padding; None if there is no padding
    width    where the answers begin
    seeded   a random generator for each row
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        config: LanguageConfig,
        sampling: MaskedSampling,
        start: int,
        pad_to: int,
        device: torch.device,
    ) -> None:
        """start: the index of the first prompt, for the seeds; pad_to: the width is a multiple of it"""
        tokens, real = padded(prompts, sampling.length, config, pad_to)
        self.tokens = tokens.to(device)
        self.width = tokens.shape[1] - sampling.length
        uneven = pad_to > 1 or any(len(prompt) < self.width for prompt in prompts)
        self.real = real.to(device) if uneven else None
        self.seeded = [torch.Generator().manual_seed(sampling.seed + start + row) for row in range(len(prompts))]
        self._guidance, self._mask_token = sampling.guidance, config.mask_token_id

    def inputs(self, positions: Tensor, rows: Tensor | None) -> tuple[Tensor, dict[str, Any]]:
        """The arguments of an evaluation that predicts the tokens at these positions [B, P].

        With guidance, the batch is followed by the same rows with masked prompts.
        """
        tokens, real = self.tokens, self.real
        if self._guidance:
            blind = tokens.clone()
            blind[:, : self.width] = self._mask_token
            tokens = torch.cat([tokens, blind])
            positions = torch.cat([positions, positions])
            rows, real = (None if one is None else torch.cat([one, one]) for one in (rows, real))
        named: dict[str, Any] = {"attention_mask": real, "positions": positions}
        return tokens, named if rows is None else {**named, "rows": rows}

    def guided(self, logits: Tensor) -> Tensor:
        """The logits in float32, after guidance: l_null + (w + 1) (l_prompt − l_null)."""
        logits = logits.float()
        if not self._guidance:
            return logits
        seeing, unseeing = logits.chunk(2)
        return unseeing + (self._guidance + 1) * (seeing - unseeing)


def padded(prompts: Sequence[Sequence[int]], length: int, config: LanguageConfig, pad_to: int) -> tuple[Tensor, Tensor]:
    """Prompts padded on the left, followed by `length` masks, and which tokens are not padding: each [B, N]."""
    width = -(-max(len(prompt) for prompt in prompts) // pad_to) * pad_to
    tokens = torch.full((len(prompts), width + length), config.mask_token_id)
    real = torch.ones_like(tokens, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        start = width - len(prompt)
        tokens[row, :start] = config.eos_token_id
        tokens[row, start:width] = torch.tensor(prompt, dtype=torch.long)
        real[row, :start] = False
    return tokens, real


def check_length(model: Model, length: int) -> None:
    """Refuse so many tokens to write that no prompt would fit beside them."""
    longest = model.config.max_sequence_length
    if length >= longest:
        raise UsageError(
            f"{length} tokens to write leave no room for a prompt in the {longest} that {model.name} was made for: "
            "take a smaller length."
        )


def check_context(config: LanguageConfig, prompts: Sequence[Sequence[int]], sampling: MaskedSampling) -> None:
    """Refuse prompts that the model cannot read, or that leave no room for what is to be written."""
    if not prompts:
        raise UsageError("No prompt was given.")
    for prompt in prompts:
        if wrong := [token for token in prompt if not 0 <= token < config.embedding_size]:
            raise UsageError(f"The model knows the tokens 0 to {config.embedding_size - 1}, not {wrong[0]}.")
        if len(prompt) + sampling.length > config.max_sequence_length:
            raise UsageError(
                f"A prompt of {len(prompt)} tokens and {sampling.length} to write are more than the "
                f"{config.max_sequence_length} the model was made for."
            )


def check_request(
    config: LanguageConfig,
    executor: Executor,
    prompts: Sequence[Sequence[int]],
    sampling: MaskedSampling,
    batch: int,
) -> None:
    """Refuse, before anything is computed, what cannot be written."""
    if batch < 1:
        raise UsageError(f"A batch holds at least one prompt, not {batch}.")
    check_context(config, prompts, sampling)
    schedule = executor.schedule
    if schedule is None:
        return
    if schedule.steps != sampling.steps:
        raise UsageError(
            f"The schedule is for {schedule.steps} steps and the sampler takes {sampling.steps}. "
            f"Sample with {schedule.steps} steps, or make a schedule for {sampling.steps}."
        )
    if sampling.in_parallel and schedule.keep == "output":
        raise UsageError("Parallel decoding reads new predictions at every evaluation, so the output cannot be held.")
    if sampling.in_parallel and schedule.rows == "written":
        raise UsageError(
            "Rows 'written' need to know how many tokens each step writes, and parallel decoding decides that as it "
            "goes. Make the schedule with rows='block'."
        )


def check_memory(
    config: LanguageConfig, rows: int, width: int, sampling: MaskedSampling, device: torch.device, itemsize: int
) -> None:
    """Refuse a batch whose keys, values and activations do not fit into the memory that the device has left."""
    free = free_memory(device)
    if free is not None:
        needed = memory_needed(config, rows * (2 if sampling.guidance else 1), width, sampling.block_length, itemsize)
        refuse_if_too_large(rows, width, needed, free)


def free_memory(device: torch.device) -> int | None:
    """Bytes that a GPU has left, or the host if it is a Linux machine; None if this is not known."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    return 1024 * int(told["MemAvailable"].split()[0]) if "MemAvailable" in told else None


def refuse_if_too_large(rows: int, width: int, needed: int, free: int) -> None:
    if needed > free:
        raise UsageError(
            f"A batch of {rows} texts of {width} tokens needs about {needed / 1e9:.1f} GB beside the weights, and "
            f"{free / 1e9:.1f} GB are free: take a smaller batch."
        )


def memory_needed(config: LanguageConfig, rows: int, width: int, block_length: int, itemsize: int) -> int:
    """Bytes beside the weights, about: the KV cache, one layer's activations at all positions, and a block's logits."""
    cache = 2 * config.n_layers * config.n_kv_heads * config.head_dim
    activations = 2 * config.mlp_hidden_size + 4 * config.d_model
    return rows * (width * (cache + activations) * itemsize + block_length * config.embedding_size * (itemsize + 4))


def encoded(model: Model, prompts: Sequence[Any], chat: bool = False) -> list[list[int]]:
    """The tokens of each prompt; `chat` wraps a text as a user message. A conversation is a list of messages."""
    if model.architecture.asks_for != "prompt":
        raise UsageError(f"{model.name} draws, it does not write: generate pictures with it.")
    if isinstance(prompts, str):
        raise UsageError(f"Prompts are a list: give [{prompts!r}].")
    if not isinstance(prompts, Sequence):
        raise UsageError(f"Prompts are a list of texts, not {prompts!r}.")
    for prompt in prompts:
        if not isinstance(prompt, str) and not _is_conversation(prompt):
            raise UsageError(
                f"A prompt is a text, or a list of messages such as {{'role': 'user', 'content': …}}, not {prompt!r}."
            )
    return [model.tokenizer.encode(prompt, chat) for prompt in prompts]


def _is_conversation(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and all(
        isinstance(one, Mapping) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)
        for one in prompt
    )
