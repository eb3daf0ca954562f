"""Text from masks: the sampling loop of masked diffusion language models, block after block.

It is LLaDA's `generate`, with the rules of Dream's `diffusion_generate` for which tokens to keep.

Within a block every step is one network evaluation that writes a number of tokens known ahead. So the host does not
wait for the device within a block: no value is read back, and every shape is fixed.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.models.language import LanguageConfig, LanguageNetwork
from tenuto.runtime.executor import Executor, Mode, executor_for
from tenuto.scheduling.schedule import Schedule

# Which of the tokens predicted at a step are kept. low_confidence: the likeliest. margin: those furthest ahead of the
# second likeliest (Dream's topk_margin). entropy: those whose distribution has the least entropy. random: any.
Remasking = Literal["low_confidence", "margin", "entropy", "random"]


@dataclass(frozen=True)
class MaskedSampling:
    """How to get from masks to text."""

    steps: int = 128  # network evaluations, over all blocks
    length: int = 128  # tokens to write after each prompt
    block_length: int = 32  # tokens of a block, which is finished before the next one begins
    temperature: float = 0.0  # 0: always the likeliest token
    guidance: float = 0.0  # w in l_null + (w + 1) (l_prompt − l_null); 0: no guidance, at half the cost
    remasking: Remasking = "low_confidence"
    seed: int = 0  # of the first row; each further row adds 1
    stop_at_eos: bool = True  # stop when every row has ended; checked only between blocks
    top_p: float = 1.0  # only the likeliest tokens whose probabilities add up to this

    def __post_init__(self) -> None:
        for name in ("steps", "length", "block_length"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.length % self.block_length:
            raise UsageError(
                f"{self.length} tokens cannot be written in blocks of {self.block_length}: "
                "length must be a multiple of block_length."
            )
        if self.steps % self.blocks:
            raise UsageError(
                f"{self.steps} steps cannot be shared equally among {self.blocks} blocks "
                f"({self.length} tokens in blocks of {self.block_length})."
            )
        if self.steps > self.length:
            raise UsageError(
                f"{self.steps} steps are more than the {self.length} tokens to write: each step writes at least one."
            )
        if not self.temperature >= 0:
            raise UsageError(f"The temperature must not be negative, and {self.temperature} is.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p lies above 0 and is at most 1, not {self.top_p}.")
        if not self.guidance >= 0:
            raise UsageError(f"Guidance must not be negative, and {self.guidance} is.")
        if self.remasking not in get_args(Remasking):
            raise UsageError(f"Remasking is one of {', '.join(get_args(Remasking))}, not {self.remasking!r}.")

    @property
    def blocks(self) -> int:
        return self.length // self.block_length

    @property
    def writes(self) -> tuple[int, ...]:
        """How many tokens each step of a block writes: equal shares; the first steps also write the remainder."""
        steps = self.steps // self.blocks
        share, remainder = divmod(self.block_length, steps)
        return tuple(share + (step < remainder) for step in range(steps))


def sampling_for(model: Model, **options: Any) -> MaskedSampling:
    """The sampling of a model: the given options, and by default its family's remasking rule."""
    return MaskedSampling(**{"remasking": model.architecture.remasking, **options})


def block_length_for(length: int, schedule: Schedule | None) -> int:
    """The length that gives as many blocks as the schedule was made for; if there is no such length, one block."""
    blocks = 1 if schedule is None else schedule.blocks
    return length // blocks if length % blocks == 0 else length


@dataclass(frozen=True)
class Written:
    """What one step wrote. The tensors are on the model's device, and only reading their values waits for the device.

    positions, tokens  [B, count]; positions are counted from the end of each prompt
    first              the index of the batch's first prompt
    """

    positions: Tensor
    tokens: Tensor
    first: int


def generate_tokens(
    model: LanguageNetwork | Executor,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: MaskedSampling | None = None,
    batch: int = 16,
    progress: Callable[[int], object] = lambda rows: None,
    **options: Any,
) -> Tensor:
    """What the model writes after each prompt: [len(prompts), length], on the CPU.

    model     a network, or an executor that runs it under a schedule; steps are counted over all blocks
    prompts   of any lengths; in a batch they are padded on the left. A mask in a prompt stays a mask
    progress  called after every step with the number of rows in the batch
    options   fields of `MaskedSampling`, instead of `sampling`

    Random numbers depend only on a row's own seed, so results do not depend on how rows are batched. With
    `stop_at_eos`, end-of-text replaces every token after a row's first end-of-text.
    """
    if sampling is not None and options:
        raise UsageError("Give `sampling` or its fields, not both.")
    stream = write_tokens(model, prompts, sampling=sampling or MaskedSampling(**options), batch=batch)
    while True:
        try:
            written = next(stream)
        except StopIteration as end:
            tokens: Tensor = end.value
            return tokens
        progress(len(written.tokens))


def write_tokens(
    model: LanguageNetwork | Executor,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: MaskedSampling,
    batch: int = 16,
    pad_to: int = 1,
) -> Generator[Written, None, Tensor]:
    """`generate_tokens` step by step: yields what each step wrote, and returns what `generate_tokens` returns.

    pad_to  prompts are padded to a multiple of this number, so that graphs recorded for one prompt serve others
    """
    executor = Executor(model) if isinstance(model, nn.Module) else model
    config: LanguageConfig = executor.network.config  # type: ignore[attr-defined]
    _check_request(config, executor, prompts, sampling, batch)
    rows = []
    for start in range(0, len(prompts), batch):
        chunk = prompts[start : start + batch]
        rows.append((yield from _write_batch(executor, config, chunk, sampling, start, pad_to)).cpu())
    written = torch.cat(rows)
    return _ended(written, config.eos_token_id) if sampling.stop_at_eos else written


@torch.inference_mode()
def _write_batch(
    executor: Executor,
    config: LanguageConfig,
    prompts: Sequence[Sequence[int]],
    sampling: MaskedSampling,
    start: int,
    pad_to: int,
) -> Generator[Written, None, Tensor]:
    network: Any = executor.network
    device = next(network.parameters()).device
    tokens, real = (part.to(device) for part in _padded(prompts, sampling.length, config, pad_to))
    width = tokens.shape[1] - sampling.length  # of the prompts
    padded = pad_to > 1 or any(len(prompt) < width for prompt in prompts)
    mask = real if padded else None
    if sampling.guidance and padded:
        mask = torch.cat([real, real])
    generators = [torch.Generator().manual_seed(sampling.seed + start + row) for row in range(len(prompts))]
    evaluate, recorded = executor.start(), executor.captures(device)
    whole = torch.arange(sampling.block_length, device=device).expand(len(prompts), -1)
    rows = None
    if executor.schedule is not None:
        rows = RowsOf(executor.schedule, sampling, width, len(prompts), device, getattr(network, "shift", 0))
    for first in range(width, tokens.shape[1], sampling.block_length):
        last = first + sampling.block_length
        # This is the only place where the host waits for the device.
        if sampling.stop_at_eos and first > width and _all_ended(tokens[:, width:first], config.eos_token_id):
            tokens[:, first:] = config.eos_token_id
            break
        left = sampling.block_length
        for count in sampling.writes:
            # Rows differ in which places are still masked, but not in how many, so the shapes are known ahead.
            written = (tokens[:, first:last] != config.mask_token_id).to(torch.uint8)
            places = written.sort(dim=1, stable=True).indices[:, :left]  # within the block, from left to right
            # A recorded evaluation needs inputs of one shape: the whole block. Written places are left out afterwards.
            asked = whole if recorded else places
            inputs, positions = tokens, first + asked
            if sampling.guidance:
                blind = tokens.clone()
                blind[:, :width] = config.mask_token_id
                inputs, positions = torch.cat([tokens, blind]), torch.cat([positions, positions])
            named: dict[str, Any] = {"attention_mask": mask, "positions": positions}
            if rows is not None and rows.wanted:
                again = rows.next(first)
                named["rows"] = torch.cat([again, again]) if sampling.guidance else again
            logits = evaluate(inputs, **named).float()
            if sampling.guidance:
                seeing, unseeing = logits.chunk(2)
                logits = unseeing + (sampling.guidance + 1) * (seeing - unseeing)
            if recorded:
                logits = logits.gather(1, places[:, :, None].expand(-1, -1, logits.shape[-1]))
            logits = nucleus(logits, sampling)
            guesses = choose_tokens(logits, sampling, config.mask_token_id, generators, places)
            confidence = confidences(logits, guesses, sampling, generators, places)
            chosen = most_confident(confidence, count)
            at, new = first + places.gather(1, chosen), guesses.gather(1, chosen)
            tokens.scatter_(1, at, new)
            if rows is not None:
                rows.wrote(at)
            left -= count
            yield Written(at - width, new, start)
    return tokens[:, width:]


class RowsOf:
    """The positions at which held units are computed: the same number at each step, so that shapes are known ahead."""

    def __init__(
        self,
        schedule: Schedule,
        sampling: MaskedSampling,
        width: int,
        batch: int,
        device: torch.device,
        shift: int = 0,
    ) -> None:
        """shift: a token is predicted this many positions before it; so a block includes the positions before it."""
        self.kind, self.full = schedule.rows, schedule.full_steps.tolist()
        self.wanted = self.kind != "none"
        self.step = 0
        writes = sampling.writes * sampling.blocks
        per_block = len(sampling.writes)
        if self.kind == "block" and not all(self.full[::per_block]):
            raise UsageError(
                f"Rows 'block' need every unit computed at the first step of each block, which has {per_block} steps "
                f"here; the schedule holds some. Make one with blocks={sampling.blocks}."
            )
        self._count, written = 1, 0  # the most tokens written between two full steps
        for step, count in enumerate(writes):
            written = 0 if self.full[step] else written
            self._count = max(self._count, written)
            written += count
        self._written: list[Tensor] = []  # since the last full step
        self._block = torch.arange(-shift, sampling.block_length, device=device).expand(batch, -1)
        self._all = (width + torch.arange(-shift, sampling.length, device=device)).clamp(min=0).expand(batch, -1)

    def next(self, first: int) -> Tensor:
        """The rows of the next step, [B, P]; `first` is where the step's block begins."""
        if self.full[self.step]:
            self._written = []
        if self.kind == "block":
            return (first + self._block).clamp(min=0)
        if self.kind == "generated":
            return self._all
        if not self._written:
            return self._all[:, :1].expand(-1, self._count).contiguous()  # same layout as the others: one signature
        rows = torch.cat(self._written, dim=1)
        return torch.cat([rows, rows[:, :1].expand(-1, self._count - rows.shape[1])], dim=1)

    def wrote(self, rows: Tensor) -> None:
        """Record that the step is over and wrote these positions."""
        self._written.append(rows)
        self.step += 1


def nucleus(logits: Tensor, sampling: MaskedSampling) -> Tensor:
    """Keep the likeliest tokens whose probabilities at the temperature add up to top_p; exclude the others."""
    if sampling.top_p == 1:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True)
    likely = (ordered / (sampling.temperature or 1.0)).softmax(-1)
    before = likely.cumsum(-1) - likely  # the probability of all tokens before each
    return torch.empty_like(logits).scatter_(-1, order, ordered.masked_fill(before >= sampling.top_p, float("-inf")))


def choose_tokens(
    logits: Tensor,
    sampling: MaskedSampling,
    mask_token: int,
    generators: Sequence[torch.Generator],
    places: Tensor,
) -> Tensor:
    """A token for each place, [B, P, V] -> [B, P]: the likeliest, or at a temperature one drawn by the Gumbel trick.

    The mask token is never chosen. A trained network does not predict it; a network with held branches might.
    """
    if sampling.temperature > 0:
        # e^l / (−log u)^T, as published: in float64, because rounding would favour the likely tokens too much
        noise = _draw(generators, (sampling.block_length, logits.shape[-1]), torch.float64, logits.device)
        noise = noise.gather(1, places[:, :, None].expand(-1, -1, logits.shape[-1]))
        logits = logits.double().exp() / (-noise.log()) ** sampling.temperature
    return logits.index_fill(-1, torch.full((1,), mask_token, device=logits.device), float("-inf")).argmax(-1)


def confidences(
    logits: Tensor, guesses: Tensor, sampling: MaskedSampling, generators: Sequence[torch.Generator], places: Tensor
) -> Tensor:
    """[B, P]: the confidence in each guess, or random numbers.

    As published, LLaDA's rule ignores the temperature, and Dream's rules (margin, entropy) use it.
    """
    if sampling.remasking == "random":
        return _draw(generators, (sampling.block_length,), torch.float32, logits.device).gather(1, places)
    if sampling.remasking == "low_confidence":
        return logits.softmax(-1).gather(-1, guesses[..., None])[..., 0]
    likely = (logits / (sampling.temperature or 1.0)).softmax(-1)
    if sampling.remasking == "entropy":
        return (likely * (likely + 1e-10).log()).sum(-1)
    best, second = likely.topk(2, dim=-1).values.unbind(-1)
    return best - second


def most_confident(confidence: Tensor, count: int) -> Tensor:
    """[B, P] -> the `count` most confident places of each row, [B, count]; of equal ones, the leftmost."""
    # A stable sort, not top-k, because top-k orders equal values differently on different devices.
    return confidence.sort(dim=1, descending=True, stable=True).indices[:, :count]


def _padded(
    prompts: Sequence[Sequence[int]], length: int, config: LanguageConfig, pad_to: int
) -> tuple[Tensor, Tensor]:
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


def _draw(
    generators: Sequence[torch.Generator], shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Uniform numbers [len(generators), *shape], each row from its own generator; the copy does not block the host."""
    noise = torch.stack([torch.rand(tuple(shape), generator=generator, dtype=dtype) for generator in generators])
    return noise.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else noise.to(device)


def _all_ended(written: Tensor, eos_token: int) -> bool:
    return bool((written == eos_token).any(dim=1).all())


def _ended(written: Tensor, eos_token: int) -> Tensor:
    return written.masked_fill((written == eos_token).cumsum(1) > 0, eos_token)


def _check_request(
    config: LanguageConfig,
    executor: Executor,
    prompts: Sequence[Sequence[int]],
    sampling: MaskedSampling,
    batch: int,
) -> None:
    if not prompts:
        raise UsageError("No prompt was given.")
    if batch < 1:
        raise UsageError(f"A batch holds at least one prompt, not {batch}.")
    for prompt in prompts:
        if wrong := [token for token in prompt if not 0 <= token < config.embedding_size]:
            raise UsageError(f"The model knows the tokens 0 to {config.embedding_size - 1}, not {wrong[0]}.")
        if len(prompt) + sampling.length > config.max_sequence_length:
            raise UsageError(
                f"A prompt of {len(prompt)} tokens and {sampling.length} to write are more than the "
                f"{config.max_sequence_length} the model was made for."
            )
    if executor.schedule is not None and executor.schedule.steps != sampling.steps:
        raise UsageError(
            f"The schedule is for {executor.schedule.steps} steps and the sampler takes {sampling.steps}. "
            f"Sample with {executor.schedule.steps} steps, or make a schedule for {sampling.steps}."
        )


def generate_text(
    model: Model,
    prompts: Sequence[str],
    *,
    schedule: Schedule | None = None,
    mode: Mode = "auto",
    compiled: bool = False,
    chat: bool = False,
    sampling: MaskedSampling | None = None,
    batch: int = 16,
    progress: Callable[[int], object] = lambda rows: None,
    **options: Any,
) -> list[str]:
    """What a language model writes after each prompt; `options` are fields of `MaskedSampling`."""
    if sampling is not None and options:
        raise UsageError("Give `sampling` or its fields, not both.")
    if schedule is not None:
        model.check_fits(schedule)
    tokens = generate_tokens(
        executor_for(model.network, schedule, mode, compiled),
        encoded(model, prompts, chat),
        sampling=sampling or sampling_for(model, **options),
        batch=batch,
        progress=progress,
    )
    return [model.tokenizer.decode(row) for row in tokens.tolist()]


def encoded(model: Model, prompts: Sequence[Any], chat: bool = False) -> list[list[int]]:
    """The tokens of each prompt; `chat` wraps a text as a user message. A conversation is a list of messages."""
    if model.architecture.asks_for != "prompt":
        raise UsageError(f"{model.name} draws, it does not write; use generate.")
    if isinstance(prompts, str):
        raise UsageError(f"Prompts are a list: give [{prompts!r}].")
    return [model.tokenizer.encode(prompt, chat) for prompt in prompts]
