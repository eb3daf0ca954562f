"""The masked sampler answers prompts, with or without a schedule. Token counts leave out the prompt."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tenuto import deciding
from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.runtime.executor import Mode, executor_for
from tenuto.sampling.masked import block_length_for, generate_tokens, sampling_for
from tenuto.sampling.prompts import check_length
from tenuto.scheduling.rewrite import FIRST, Every
from tenuto.scheduling.schedule import Schedule
from tenuto.text import BLOCK, EVERY
from tenuto_lab.full_size.answer_metrics import cut

LENGTH = 256  # tokens of an answer, as in LLaDA's evaluation


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: int  # before the end of the text, without the prompt
    prompt_cut: bool  # whether the prompt was too long, so that its beginning was left out


class Writer:
    """A language model and its settings for answering."""

    def __init__(
        self,
        model: Model,
        schedule: Schedule | None = None,
        *,
        length: int = LENGTH,
        steps: int | None = None,
        block_length: int | None = None,
        parallel: float | None = None,
        factor: float | None = None,
        every: Every | None = None,
        sliding: bool = False,
        chat: bool = False,
        batch: int = 16,
        mode: Mode = "auto",
        compiled: bool = False,
    ) -> None:
        """steps         by default the schedule's number; without a schedule, one per token
        parallel      the threshold of parallel decoding; or `factor`, its factor
        every         with these: everything is computed every so many evaluations, else a block with a KV cache. By
                      default as everywhere
        sliding       with these: the leftmost masks of the whole text instead of a block
        block_length  by default the schedule's number of blocks; with parallel decoding 32 tokens if that divides the
                      length; otherwise one block
        chat          wrap each prompt as a user's message, with the model's own template
        """
        if model.architecture.asks_for != "prompt":
            raise UsageError(f"{model.name} draws; its pictures are evaluated by: tenuto lab eval samples {model.name}")
        check_length(model, length)
        in_parallel = parallel is not None or factor is not None
        if every is not None and (not in_parallel or schedule is not None):
            raise UsageError("`every` goes with parallel decoding and without a schedule.")
        self.every = every
        if in_parallel and schedule is None:
            if block_length is None and length % BLOCK == 0:
                block_length = BLOCK
            self.every = EVERY if every is None else every
            schedule = deciding.schedule(model, length, every=self.every, rows="block")
        if schedule is not None:
            model.check_fits(schedule)
        self.model, self.schedule, self.chat, self.batch = model, schedule, chat, batch
        self.sampling = sampling_for(
            model,
            steps=steps or (schedule.steps if schedule else length),
            length=length,
            block_length=block_length or block_length_for(length, schedule),
            parallel=parallel,
            factor=factor,
            sliding=sliding,
            guidance=model.architecture.guidance,
        )
        self.how: dict[str, Any] = {"mode": mode, "compiled": compiled}
        if schedule is not None and schedule.steps != self.sampling.steps:
            raise UsageError(f"The schedule is for {schedule.steps} steps, not for {self.sampling.steps}.")

    @property
    def settings(self) -> dict[str, Any]:
        sampling = {name: value for name, value in asdict(self.sampling).items() if name != "seed"}
        return {**sampling, "chat": self.chat, "batch": self.batch, **self.how}

    @property
    def protocol(self) -> str:
        """How answers are written, for the line beside their number."""
        sampling = self.sampling
        blocks = f"in blocks of {sampling.block_length}" if sampling.blocks > 1 else "in one block"
        if sampling.sliding:
            blocks = f"in a sliding window of {sampling.block_length}"
        if sampling.factor is not None:
            rate = f"the factor rule with a factor of {sampling.factor:g}"
        elif sampling.parallel is not None:
            rate = f"every token of a probability of at least {sampling.parallel:g}"
        else:
            rate = f"{sampling.steps} steps"
        computed = "everything computed"
        if self.every not in (None, 1):
            first = FIRST.get(str(self.every))
            named = f"every {self.every}" if first is None else f"the first {first} and the powers of two"
            computed = f"all positions computed at {named}, else a block"
            if self.every == "checked":
                computed += " while the KV cache passes its checks"
        elif self.schedule is not None and self.every is None:
            computed = "computed by a schedule"
        chat = "the model's chat template" if self.chat else "no chat template"
        return f"greedy, {sampling.length} tokens {blocks}, {rate}, {computed}, {chat}"

    def answers(self, prompts: Sequence[str], until: Sequence[Sequence[str]] | None = None) -> list[Answer]:
        """The answer to each prompt, cut at the first occurrence of a string in its `until`."""
        if not prompts:
            return []
        room = self.model.config.max_sequence_length - self.sampling.length
        given = [self.model.tokenizer.encode(prompt, self.chat) for prompt in prompts]
        executor = executor_for(self.model.network, self.schedule, **self.how)
        rows = generate_tokens(executor, [one[-room:] for one in given], sampling=self.sampling, batch=self.batch)
        stops = until or [()] * len(prompts)
        return [
            self._written(row, stop, len(one) > room)
            for row, stop, one in zip(rows.tolist(), stops, given, strict=True)
        ]

    def _written(self, row: list[int], until: Sequence[str], prompt_cut: bool) -> Answer:
        end = self.model.config.eos_token_id
        answer = row[: row.index(end)] if end in row else row
        text = self.model.tokenizer.decode(answer)
        return Answer(cut(text, until), len(answer), prompt_cut)
