"""Language models: load one and generate text, in full or under a schedule.

    import tenuto
    model = tenuto.text.load("small-llada")
    texts = model.generate(["sort: 42 48 7 25 53 40 ->"], length=32, parallel=0.9)
    print(texts[0], texts.summary())

LLaDA and Dream work in the same way. Schedules are made for the given number of steps. Executors are kept between
calls, so that graphs recorded for one prompt serve the next.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenuto import deciding, models
from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.runtime.executor import Executor, Executors, Mode
from tenuto.sampling.masked import Written, block_length_for, encoded, sampling_for, write_tokens
from tenuto.sampling.prompts import check_context
from tenuto.scheduling.rewrite import Every, checks
from tenuto.scheduling.schedule import Rows, Schedule, opened

LENGTH = 64  # tokens to write
BLOCK = 32  # tokens of a block, if a text has several blocks
PARALLEL = 0.9  # Fast-dLLM's threshold; docs/language.md says what it costs, and what higher ones cost
EVERY: Every = "checked"  # with parallel decoding: of all caches that were measured, the one that loses nothing
PAD = 64  # if graphs are recorded, prompts are padded to a multiple of this


def load(
    name: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    mode: Mode = "auto",
    compiled: bool = False,
) -> "LanguageModel":
    """A language model: a shipped one, a directory, or a hub id. `mode` and `compiled` are the executor's."""
    return LanguageModel(models.load(name, device=device, dtype=dtype), mode=mode, compiled=compiled)


class Texts(list[str]):
    """The texts, and the time and work that they took."""

    def __init__(
        self,
        texts: Iterable[str],
        tokens: int,
        seconds: float,
        steps: int,
        schedule: Schedule | None,
        batches: int = 1,
        whole: int | None = None,
    ) -> None:
        """whole: evaluations that computed everything, if the schedule alone does not say how many"""
        super().__init__(texts)
        self.tokens = tokens  # in all texts, without end-of-text
        self.seconds = seconds
        self.steps = steps  # network evaluations of a batch
        self.batches = batches
        self.work = 1.0 if schedule is None else schedule.budget  # share of the unit-steps that the schedule computes
        self.keys_kept = schedule is not None and schedule.keep == "keys"
        # Evaluations that computed everything.
        self.full_steps = steps if schedule is None else int(schedule.full_steps[:steps].sum())
        if whole is not None:
            self.full_steps = whole

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def summary(self) -> str:
        if self.full_steps == self.steps:
            work = "everything computed"
        elif self.keys_kept:
            work = f"{self.full_steps} of everything and {self.steps - self.full_steps} of a block, from the KV cache"
        else:
            work = f"{self.work:.0%} of the unit-steps computed"
        tokens = f"{self.tokens} token{'' if self.tokens == 1 else 's'}"
        evaluations = f"{self.steps} evaluation{'' if self.steps == 1 else 's'}"
        return f"{tokens} in {self.seconds:.2f} s ({self.tokens_per_second:.1f} tokens/s), {evaluations}, {work}"


class Writing(Iterator[Written]):
    """Texts during generation: iterate over what each step writes, or read `texts` to get all of them at once."""

    def __init__(
        self, steps: Generator[Written, None, Tensor], finish: Callable[[Tensor, float, int, int], Texts]
    ) -> None:
        self._steps, self._finish = steps, finish
        self._taken: dict[int, int] = {}  # steps of each batch
        self._whole: dict[int, int] = {}  # those that computed everything
        self._started: float | None = None
        self._texts: Texts | None = None

    def __next__(self) -> Written:
        if self._started is None:
            self._started = time.perf_counter()
        try:
            written = next(self._steps)
        except StopIteration as end:
            if self._texts is None:
                longest = max(self._taken, key=lambda one: self._taken[one])  # batches run one after the other
                took = time.perf_counter() - self._started
                self._texts = self._finish(end.value, took, self._taken[longest], self._whole[longest])
            raise
        self._taken[written.first] = self._taken.get(written.first, 0) + 1
        self._whole[written.first] = self._whole.get(written.first, 0) + written.whole
        return written

    @property
    def texts(self) -> Texts:
        """All texts; the remaining steps run now, and what each of them writes is not returned."""
        for _ in self:
            pass
        assert self._texts is not None
        return self._texts


class LanguageModel:
    def __init__(self, model: Model, *, mode: Mode = "auto", compiled: bool = False) -> None:
        if model.architecture.asks_for != "prompt":
            raise UsageError(f"{model.name} draws, it does not write: generate pictures with it.")
        self.model = model
        self._mode: Mode = mode
        self._compiled = compiled
        self._schedules: dict[tuple[Any, ...], Schedule] = {}
        self._executors = Executors(lambda schedule, **how: Executor(model.network, schedule, **how))

    def __repr__(self) -> str:
        return f"<LanguageModel {self.model.name}: {self.model.architecture.name} on {self.model.device}>"

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self.model.tokenizer.chats)

    def schedule(
        self,
        steps: int,
        *,
        blocks: int = 1,
        budget: float | None = None,
        speedup: float | None = None,
        every: Every | None = None,
        rows: Rows | None = None,
    ) -> Schedule:
        """The schedule for these numbers of steps and blocks; made once and then cached."""
        key = (steps, blocks, budget, speedup, every, rows)
        if key not in self._schedules:
            self._schedules[key] = deciding.schedule(
                self.model, steps, blocks=blocks, budget=budget, speedup=speedup, every=every, rows=rows
            )
        return self._schedules[key]

    def generate(self, prompts: Sequence[Any], **options: Any) -> Texts:
        """What the model writes after each prompt; the options are those of `stream`."""
        return self.stream(prompts, **options).texts

    def stream(
        self,
        prompts: Sequence[Any],
        *,
        budget: float | None = None,
        speedup: float | None = None,
        schedule: Schedule | str | Path | None = None,
        every: Every | None = None,
        length: int = LENGTH,
        steps: int | None = None,
        block_length: int | None = None,
        chat: bool = False,
        batch: int = 16,
        **options: Any,
    ) -> Writing:
        """`generate`, step by step.

        prompts       texts; or conversations, each a list of messages {"role": …, "content": …}
        budget        without parallel decoding: share of unit-steps to compute. Instead: `speedup`, how many times as
                      fast as full inference, or a `schedule` that was made before, or its file. With none of
                      the three and one token a step, everything is computed
        every         instead, with `parallel` or `factor`: compute all positions at every N-th evaluation, and one
                      block with a KV cache at the others. By default "checked": all positions at the first four
                      evaluations and at the powers of two, where the cache is also checked; and at all further ones of
                      a text whose cache has failed a check. "early": without checks. "careful": without checks, and at
                      the first eight and the powers of two. 1: no cache
        length        tokens to write
        steps         network evaluations. By default the schedule's, or one for each token
        block_length  tokens of a block, which is finished before the next one begins. By default the schedule's, or 32
                      if that divides the length, or all of them
        chat          whether to wrap prompts in the model's chat template
        options       other fields of `MaskedSampling`: parallel, temperature, top_p, remasking, guidance, seed, …
        """
        decided = opened(schedule)
        if sum(one is not None for one in (budget, speedup, decided, every)) > 1:
            raise UsageError("Give one of budget, speedup, schedule and every: each says how much is computed.")
        if block_length is None:
            block_length = block_length_for(length, decided) if decided or length % BLOCK else BLOCK
        if steps is None:
            steps = length if decided is None else decided.steps
        sampling = sampling_for(self.model, steps=steps, length=length, block_length=block_length, **options)
        if sampling.in_parallel and (budget, speedup) != (None, None):
            raise UsageError(
                "A budget or a speed-up is for a fixed number of steps; with parallel decoding, give `every`."
            )
        if every is not None and not sampling.in_parallel:
            raise UsageError("`every` goes with parallel decoding (parallel=0.9); without it, give a budget.")
        if sampling.in_parallel and decided is None and every is None:
            every = EVERY
        tokens = encoded(self.model, prompts, chat)
        check_context(self.model.config, tokens, sampling)
        if every is not None:
            decided = self.schedule(steps, every=every, rows="block")
        elif budget is not None or speedup is not None:
            decided = self.schedule(steps, blocks=sampling.blocks, budget=budget, speedup=speedup)
        if decided is not None:
            self.model.check_fits(decided)
        network: Any = self.model.network
        network.fuse()
        executor = self._executors.get(decided, self._mode, self._compiled)
        pad_to = PAD if executor.captures(self.model.device) else 1
        writing = write_tokens(executor, tokens, sampling=sampling, batch=batch, pad_to=pad_to)

        def finish(written: Tensor, seconds: float, taken: int, whole: int) -> Texts:
            ended = (written == self.model.config.eos_token_id).cumsum(1) > 0
            texts = (self.model.tokenizer.decode(row) for row in written.tolist())
            counted = whole if decided is not None and checks(decided) else None
            return Texts(texts, int((~ended).sum()), seconds, taken, decided, -(-len(tokens) // batch), counted)

        return Writing(writing, finish)
