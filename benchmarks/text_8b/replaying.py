"""A network with random weights, and what stands in for its confidence: how many tokens each evaluation writes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tenuto.models.llada import LLaDA, LLaDAConfig
from tenuto.runtime.compilation import function_of_many_shapes
from tenuto.sampling import parallel
from tenuto.sampling.masked import MaskedSampling

RATE = 2.7  # tokens that an evaluation writes
FULL = replace(LLaDAConfig(), max_sequence_length=8192)
SMALL = LLaDAConfig(32, 2, 4, 4, 48, 200, 200, 512, mask_token_id=0, eos_token_id=1)


class Replay:
    """Writes the surest tokens, RATE of them on average, instead of those that a network is sure of."""

    def __init__(self, device: torch.device, rate: float = RATE) -> None:
        steps = range(1, 10_000)
        self.counts = torch.tensor([round(rate * i) - round(rate * (i - 1)) for i in steps], device=device)
        self.step = -1

    def accepted(self, confidence: Tensor, likely: Tensor, masked: Tensor, sampling: MaskedSampling) -> Tensor:
        """In place of `tenuto.sampling.guesses.accepted`."""
        return self(confidence, masked)

    def __call__(self, confidence: Tensor, masked: Tensor) -> Tensor:
        self.step += 1
        return surest(confidence, masked, self.counts[self.step])


@function_of_many_shapes
def surest(confidence: Tensor, masked: Tensor, count: Tensor) -> Tensor:
    """As many kernels as the rule that it replaces."""
    sure = confidence.masked_fill(~masked, -torch.inf)
    place = torch.arange(sure.shape[1], device=sure.device)
    ahead = (sure[:, None, :] > sure[:, :, None]) | ((sure[:, None, :] == sure[:, :, None]) & (place < place[:, None]))
    return (ahead.sum(2) < count) & masked


@contextmanager
def replayed(device: torch.device) -> Iterator[None]:
    with mock.patch.object(parallel, "accepted", Replay(device).accepted):
        yield


def made(config: LLaDAConfig, device: torch.device) -> LLaDA:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device, torch.no_grad():
            network = LLaDA(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)
    return network


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    finish(device)
    start = time.perf_counter()
    work()
    finish(device)
    return time.perf_counter() - start


def prompts_of(batch: int, width: int, config: Any) -> list[list[int]]:
    drawn = torch.randint(2, config.vocab_size - 2, (batch, width), generator=torch.Generator().manual_seed(1))
    allowed = drawn.masked_fill_((drawn == config.mask_token_id) | (drawn == config.eos_token_id), 2)
    return [[int(token) for token in row] for row in allowed]
