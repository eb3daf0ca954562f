"""Our language models in the language model evaluation harness, as the model `tenuto`.

    import tenuto_lab.full_size.harness                              # registers the model
    lm_eval.simple_evaluate("tenuto", {"model": "GSAI-ML/LLaDA-8B-Instruct", "schedule": "s.json"}, ["gsm8k"])

The masked sampler writes the answers, under the schedule if there is one. Likelihoods are estimates (see
likelihood.py). They ignore the schedule, because an estimate has no steps.
"""

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from tenuto.errors import UsageError
from tenuto.models import Model, load
from tenuto.runtime.executor import Executor
from tenuto.sampling.masked import generate_tokens, sampling_for
from tenuto.scheduling.rewrite import Every
from tenuto.scheduling.schedule import Schedule, opened
from tenuto_lab.full_size.answers import LENGTH, Writer
from tenuto_lab.full_size.jobs import Worker
from tenuto_lab.full_size.likelihood import DRAWS, log_likelihood

PATIENCE = timedelta(days=1)  # how long finished processes wait for the others


@register_model("tenuto")
class TenutoLM(LM):
    def __init__(
        self,
        model: str | Model,
        schedule: str | Schedule | None = None,
        *,
        length: int = LENGTH,
        steps: int | None = None,
        block_length: int | None = None,
        parallel: float | None = None,
        factor: float | None = None,
        every: Every | None = None,
        sliding: bool = False,
        chat: bool = False,
        draws: int = DRAWS,
        greedy: bool = True,
        seed: int = 0,
        batch_size: int | str = 16,
        dtype: str | None = None,
        device: str | None = "cpu",
        mode: Any = "auto",
        compiled: bool = False,
        max_batch_size: int | None = None,
    ) -> None:
        """draws   number of draws for the estimate of a likelihood
        greedy  also find out whether the model would write each continuation; costs one evaluation per token
        seed    of the estimates. It is combined with the text, so an estimate depends on neither order nor processes
        """
        super().__init__()
        worker = Worker.from_environment()
        place = worker.device(device or "cpu")
        precision = None if dtype is None else getattr(torch, dtype)
        self.network = model if isinstance(model, Model) else load(model, device=place, dtype=precision)
        self.writer = Writer(
            self.network,
            opened(schedule),
            length=length,
            steps=steps,
            block_length=block_length,
            parallel=parallel,
            factor=factor,
            every=every,
            sliding=sliding,
            chat=chat,
            batch=int(batch_size),
            mode=mode,
            compiled=compiled,
        )
        self.draws, self.greedy, self.seed = draws, greedy, seed
        self.answer_tokens: dict[str, int] = {}  # by prompt
        self._rank, self._world_size = worker.rank, worker.world
        self._device = torch.device("cpu")  # for the exchange between processes; the model may be on another device
        if worker.world > 1 and not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo", timeout=PATIENCE)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        texts: list[str] = []
        for start in range(0, len(requests), self.writer.batch):
            part = requests[start : start + self.writer.batch]
            written = self.writer.answers([one.args[0] for one in part], [_until(one.args[1]) for one in part])
            for one, answer in zip(part, written, strict=True):
                self.answer_tokens[one.args[0]] = answer.tokens
                self.cache_hook.add_partial("generate_until", one.args, answer.text)
                texts.append(answer.text)
        return texts

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        found = []
        for one in requests:
            prompt, text = self._split(*one.args)
            estimate = self._estimate(prompt, text), self.greedy and self._would_write(prompt, text)
            self.cache_hook.add_partial("loglikelihood", one.args, estimate)
            found.append(estimate)
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The same estimate, in pieces of the model's full length. A piece does not see earlier pieces."""
        found = []
        for one in requests:
            tokens = self.network.tokenizer.encode(one.args[0])
            longest = self.network.config.max_sequence_length
            pieces = [tokens[start : start + longest] for start in range(0, len(tokens), longest)]
            found.append(sum(self._estimate([], piece) for piece in pieces))
            self.cache_hook.add_partial("loglikelihood_rolling", one.args, found[-1])
        return found

    def _estimate(self, prompt: list[int], text: list[int]) -> float:
        return log_likelihood(
            self.network.network,  # type: ignore[arg-type]
            prompt,
            text,
            draws=self.draws,
            batch=self.writer.batch,
            seed=_seed(self.seed, prompt, text),
        )

    def _would_write(self, prompt: list[int], text: list[int]) -> bool:
        if not text:
            return True
        size = len(text)
        sampling = sampling_for(self.network, steps=size, length=size, block_length=size)
        rows = generate_tokens(Executor(self.network.network), [prompt], sampling=sampling, batch=1)
        return bool(rows[0].tolist() == text)

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """The tokens of both, encoded together and split at the length of the context alone.

        If both together are too long for the model, the context loses its beginning.
        """
        spaces = len(context) - len(context.rstrip())
        if spaces:  # words carry the space before them
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        encode, longest = self.network.tokenizer.encode, self.network.config.max_sequence_length
        whole, before = encode(context + continuation), len(encode(context))
        text = whole[before:]
        if len(text) > longest:
            raise UsageError(f"A continuation of {len(text)} tokens is longer than the model's {longest}.")
        return whole[:before][max(0, len(whole) - longest) :], text

    def all_gather(self, tensor: Any) -> Any:
        if self.world_size == 1:
            return tensor
        gathered = [torch.zeros_like(tensor) for _ in range(self.world_size)]
        torch.distributed.all_gather(gathered, tensor)
        return torch.stack(gathered)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        if self.world_size == 1:
            return [obj]
        gathered: list[Any] | None = [None] * self.world_size if self.rank == dst else None
        torch.distributed.gather_object(obj, gathered, dst=dst)
        return gathered

    def barrier(self) -> None:
        if self.world_size > 1:
            torch.distributed.barrier()

    @property
    def tokenizer_name(self) -> str:
        return self.network.name.replace("/", "__")


def _until(options: dict[str, Any]) -> list[str]:
    if float(options.get("temperature") or 0) > 0 and options.get("do_sample", True):
        raise UsageError("The task asks for samples at a temperature; here the likeliest tokens are written.")
    stops = options.get("until") or []
    return [stops] if isinstance(stops, str) else list(stops)


def _seed(seed: int, prompt: Sequence[int], text: Sequence[int]) -> int:
    digest = hashlib.sha256(repr((seed, list(prompt), list(text))).encode()).digest()
    return int.from_bytes(digest[:6], "big")
