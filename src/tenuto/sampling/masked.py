"""Text from masks: the sampling loop of masked diffusion language models, block after block.

This is LLaDA's `generate`, with the rules of Dream's `diffusion_generate` for choosing the tokens to keep. The other
loop, `parallel`, writes all tokens with a high probability at once.

Within a block every step is one network evaluation that writes a number of tokens known ahead. So the host does not
wait for the device within a block: no value is read back, and every shape is fixed.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.models.language import LanguageConfig, LanguageNetwork
from tenuto.runtime.executor import Executor, Mode, executor_for
from tenuto.sampling.guesses import choose_tokens, confidences, most_confident, nucleus
from tenuto.sampling.parallel import Written, write_in_parallel
from tenuto.sampling.prompts import Canvas, check_memory, check_request, encoded
from tenuto.sampling.settings import MaskedSampling
from tenuto.scheduling.schedule import Schedule


def sampling_for(model: Model, **options: Any) -> MaskedSampling:
    """The sampling of a model: the given options, and by default its family's remasking rule.

    With parallel decoding the default is the probability, which the threshold is about, and steps need not be given.
    """
    if unknown := [name for name in options if name not in MaskedSampling.__dataclass_fields__]:
        known = ", ".join(MaskedSampling.__dataclass_fields__)
        raise UsageError(f"There is no option {unknown[0]!r}; the options of sampling are {known}.")
    parallel = options.get("parallel") is not None or options.get("factor") is not None
    default: dict[str, Any] = {"remasking": "low_confidence" if parallel else model.architecture.remasking}
    if parallel:
        default["steps"] = options.get("length", MaskedSampling.length)
    return MaskedSampling(**{**default, **options})


def block_length_for(length: int, schedule: Schedule | None) -> int:
    """The length that gives as many blocks as the schedule was made for; if there is no such length, one block."""
    blocks = 1 if schedule is None else schedule.blocks
    return length // blocks if length % blocks == 0 else length


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
    check_request(config, executor, prompts, sampling, batch)
    weights = next(executor.network.parameters())  # type: ignore[attr-defined]
    longest = max(map(len, prompts)) + sampling.length
    check_memory(config, min(batch, len(prompts)), longest, sampling, weights.device, weights.itemsize)
    write = write_in_parallel if sampling.in_parallel else _write_batch
    rows = []
    for start in range(0, len(prompts), batch):
        chunk = prompts[start : start + batch]
        rows.append((yield from write(executor, config, chunk, sampling, start, pad_to)).cpu())
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
    canvas = Canvas(prompts, config, sampling, start, pad_to, device)
    tokens, width = canvas.tokens, canvas.width
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
            again = rows.next(first) if rows is not None and rows.wanted else None
            inputs, named = canvas.inputs(first + asked, again)
            logits = canvas.guided(evaluate(inputs, **named))
            if recorded:
                logits = logits.gather(1, places[:, :, None].expand(-1, -1, logits.shape[-1]))
            logits = nucleus(logits, sampling)
            guesses = choose_tokens(logits, sampling, config.mask_token_id, canvas.seeded, places)
            confidence = confidences(logits, guesses, sampling, canvas.seeded, places)
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


def _all_ended(written: Tensor, eos_token: int) -> bool:
    return bool((written == eos_token).any(dim=1).all())


def _ended(written: Tensor, eos_token: int) -> Tensor:
    return written.masked_fill((written == eos_token).cumsum(1) > 0, eos_token)


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
