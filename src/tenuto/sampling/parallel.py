"""Parallel decoding: each evaluation writes every token of the block with a high probability, and at least one.

Fast-dLLM (Wu et al.) showed that tokens above a probability of 0.9 can be written together without loss. Here every row
of a batch is decoded independently. The device decides all of the following:

    block     the row's first block that still has a mask; or a sliding window, the leftmost masks of the whole text
    computed  with a KV cache: the tokens that the last evaluation wrote, because the cache holds a mask in their place;
              then the masks of the block, from left to right. At most as many in all as a block has. At a full step:
              everything
    written   of the masks that were computed, the guesses that `accepted` allows. If the last evaluation wrote a whole
              block, no mask was computed: this evaluation only brings the cache up to date
    ended     a row ends when no mask is left, or none before its first end-of-text
    checked   if the schedule says so: before a full step, the step that the cache would allow is made as well. If the
              probabilities that the two predict at the masks differ too much, the row uses the cache no more

So all shapes are fixed, CUDA graphs can be used, and the device does not wait for the host. The host learns one
evaluation late which tokens were written, and whether all rows have ended; the evaluation that it started meanwhile
writes nothing. Only for large batches the host waits for the number of needed positions, to compute only these
(`packs`).
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tenuto.models.language import LanguageConfig, LanguageNetwork
from tenuto.runtime.compilation import compiling
from tenuto.runtime.executor import Executor, Generation
from tenuto.sampling.guesses import Likeliest, accepted, choose_tokens, confidences, nucleus, probability
from tenuto.sampling.prompts import Canvas
from tenuto.sampling.settings import MaskedSampling
from tenuto.sampling.trust import Said, Trust
from tenuto.sampling.window import Rules, packing, plan, settle

MANY = 128  # positions of a step in all rows, from which arithmetic takes longer than reading the weights
ROUND = 32  # numbers of positions are multiples of it


@dataclass(frozen=True)
class Written:
    """What one step wrote. Where the tensors are on the model's device, only reading their values waits for the device.

    positions, tokens  [B, count]; positions are counted from the end of each prompt
    first              the index of the batch's first prompt
    kept               bool [B, count]: which of them were written; None means all
    whole              whether the step computed all positions, of one row at least
    """

    positions: Tensor
    tokens: Tensor
    first: int
    kept: Tensor | None = None
    whole: bool = True

    def of(self, row: int) -> dict[int, int]:
        """What was written in one row of the batch: a token for each position. This reads values."""
        pairs = zip(self.positions[row].tolist(), self.tokens[row].tolist(), strict=True)
        kept = [True] * len(self.positions[row]) if self.kept is None else self.kept[row].tolist()
        return {place: token for (place, token), now in zip(pairs, kept, strict=True) if now}


@torch.inference_mode()
def write_in_parallel(
    executor: Executor,
    config: LanguageConfig,
    prompts: Sequence[Sequence[int]],
    sampling: MaskedSampling,
    start: int,
    pad_to: int,
) -> Generator[Written, None, Tensor]:
    """Write a batch; yields what each evaluation wrote, and returns the answers [B, length] on the device."""
    network = executor.network
    device = next(network.parameters()).device  # type: ignore[attr-defined]
    canvas = Canvas(prompts, config, sampling, start, pad_to, device)
    tokens, shift = canvas.tokens[:, canvas.width :], getattr(network, "shift", 0)
    stale = torch.zeros(len(tokens), shift + sampling.length, dtype=torch.bool, device=device)
    rules = Rules(
        mask=config.mask_token_id,
        end=config.eos_token_id if sampling.stop_at_eos else None,
        block=sampling.block_length,
        shift=shift,
        rows="none" if executor.schedule is None else executor.schedule.rows,
        sliding=sampling.sliding,
    )
    evaluate, late = executor.start(), Late(device)
    reading = Reading(evaluate, executor, canvas, config, sampling)
    compiled = executor.compiled and not on_host(device)
    trust = Trust(executor, len(tokens), device)
    for step in range(sampling.length):
        full = executor.schedule is None or executor.full_steps[step]
        tested = None
        if full and trust.can_be_tested(step):
            with compiling(compiled):
                asked, masked, computed, needed = plan(tokens, stale.clone(), rules, False)
            assert needed is not None
            noise = [one.get_state() for one in canvas.seeded]
            evaluate.step = trust.block_step
            tested = reading.read(asked, masked, computed), needed
            evaluate.step = step
            for generator, state in zip(canvas.seeded, noise, strict=True):
                generator.set_state(state)  # the full step draws the same numbers
        beside = None
        if trust.broken and not full:
            with compiling(compiled):
                beside = plan(tokens, stale.clone(), rules, True)[1], trust.rows
        with compiling(compiled):
            asked, masked, computed, needed = plan(tokens, stale, rules, full)
        packed = None
        if needed is not None and computed is not None and not full and packs(reading.early, computed):
            with compiling(compiled):
                slots, starts = packing(needed, computed.shape[1])
            packed = slots[: tier(int(starts[-1]), len(slots))], starts
        if beside is not None and trust.all_broken:  # nobody reads the cache any more
            evaluate.step, masked, beside, packed = 0, beside[0], None, None
            full = True
        said = reading.read(asked, masked, computed, packed, beside)
        evaluate.step = step + 1
        with compiling(compiled):
            sent = settle(tokens, stale, said.places, said.guesses, said.chosen, rules)
        if tested is not None:
            trust.test(tested[0], said, tested[1])
        for told in late.tell(sent, full or beside is not None):
            yield told.written(start)
        if late.all_ended:
            break
    for told in late.rest():
        yield told.written(start)
    if executor.schedule is not None:
        evaluate.step = executor.schedule.steps  # nothing that is kept will be read again
    return tokens


class Reading:
    """What an evaluation says of a block: the guesses, and which of them are written."""

    def __init__(
        self, evaluate: Generation, executor: Executor, canvas: Canvas, config: LanguageConfig, sampling: MaskedSampling
    ) -> None:
        self._evaluate, self._executor, self._canvas, self._sampling = evaluate, executor, canvas, sampling
        self._mask = config.mask_token_id
        plain = not (sampling.guidance or sampling.temperature) and sampling.top_p == 1
        likeliest = plain and sampling.remasking == "low_confidence" and isinstance(executor.network, LanguageNetwork)
        self._reader = Likeliest(self._mask) if likeliest else None
        self._device = canvas.tokens.device
        self._compiled = executor.compiled and not on_host(self._device)
        self._whole = torch.arange(sampling.block_length, device=self._device).expand(len(canvas.tokens), -1)

    @property
    def early(self) -> bool:
        """Whether logits are read within the evaluation."""
        return self._reader is not None

    def read(
        self,
        asked: Tensor,
        masked: Tensor,
        computed: Tensor | None,
        packed: tuple[Tensor, Tensor] | None = None,
        beside: tuple[Tensor, Tensor] | None = None,
    ) -> Said:
        """What an evaluation says.

        asked, masked     [B, block]: the block's places, and which of them may be written
        computed, packed  as in `plan` and `packing`
        beside            what else may be written if everything is computed [B, block], and which rows do without [B]
        """
        if beside is not None:
            masked = torch.where(beside[1][:, None], masked, beside[0])
        places = self._whole
        if on_host(self._device):
            most = int(masked.sum(1).max())
            places = (~masked).to(torch.uint8).sort(dim=1, stable=True).indices[:, :most]
            asked, masked = asked.gather(1, places), masked.gather(1, places)
        canvas, sampling = self._canvas, self._sampling
        at, rows = canvas.width + asked, None if computed is None else (canvas.width + computed).clamp(min=0)
        inputs, named = canvas.inputs(at, rows)
        if packed is not None:
            named["packed"] = packed
        found = self._found(self._evaluate, inputs, named)
        if beside is not None:
            inputs, named = canvas.inputs(at, None)
            with compiling(self._compiled):
                whole = self._found(self._without_cache, inputs, named)
            found = tuple(
                torch.where(beside[1].view(-1, *[1] * (one.dim() - 1)), one, other)
                for one, other in zip(found, whole, strict=True)
            )
        if self._reader is not None:
            guesses, likely = found
            confidence = likely
        else:
            logits = nucleus(found[0], sampling)
            guesses = choose_tokens(logits, sampling, self._mask, canvas.seeded, places)
            likely = probability(logits, guesses)
            confidence = likely
            if sampling.remasking != "low_confidence":
                confidence = confidences(logits, guesses, sampling, canvas.seeded, places)
        with compiling(self._compiled):
            return Said(asked, masked, guesses, likely, accepted(confidence, likely, masked, sampling))

    def _found(self, evaluate: Callable[..., Any], inputs: Tensor, named: dict[str, Any]) -> tuple[Tensor, ...]:
        """The guesses and their probabilities, or the logits."""
        if self._reader is not None:
            guesses, likely = evaluate(inputs, **named, read=self._reader)
            return guesses, likely
        return (self._canvas.guided(evaluate(inputs, **named)),)

    def _without_cache(self, inputs: Tensor, **named: Any) -> Any:
        return self._executor.network(inputs, **named, residual=self._executor.in_full)


def packs(possible: bool, computed: Tensor) -> bool:
    """Whether only the needed positions of all rows are computed, as one list.

    Then the host waits for their number. That takes a fraction of a millisecond, and pays where arithmetic takes long.
    """
    return possible and computed.is_cuda and computed.numel() >= MANY


def tier(needed: int, most: int) -> int:
    """The number of positions that are computed if so many are needed: one of seven, each with its graph."""
    size = -(-most // (8 * ROUND)) * ROUND
    return min(max(-(-needed // size), 2) * size, most)


def on_host(device: torch.device) -> bool:
    """Whether the host computes: then reading a value is free, and shapes may change."""
    return device.type == "cpu"


@dataclass(frozen=True)
class Told:
    """What the host learnt of one evaluation, in its own memory."""

    places: Tensor
    tokens: Tensor
    chosen: Tensor
    whole: bool = True

    def written(self, first: int) -> Written:
        return Written(self.places, self.tokens, first, self.chosen, self.whole)


class Late:
    """Brings what was written to the host. On a GPU it arrives one evaluation late, so that the host never waits."""

    def __init__(self, device: torch.device, delay: int | None = None, event: Callable[[], Any] | None = None) -> None:
        """delay: evaluations; by default 0 on the host and 1 elsewhere. event: marks what was sent so far"""
        self._delay = (0 if on_host(device) else 1) if delay is None else delay
        self._pinned = device.type == "cuda"
        self._event = event or (torch.cuda.current_stream(device).record_event if self._pinned else lambda: None)
        self._waiting: list[tuple[Tensor, Any, bool]] = []
        self._spare: list[Tensor] = []
        self.all_ended = False

    def tell(self, sent: Tensor, whole: bool = True) -> Iterator[Told]:
        """Send what `settle` says of an evaluation, which computed everything or not; yield what has arrived."""
        fits = self._spare and self._spare[-1].shape == sent.shape
        there = self._spare.pop() if fits else torch.empty(sent.shape, dtype=sent.dtype, pin_memory=self._pinned)
        there.copy_(sent, non_blocking=True)
        self._waiting.append((there, self._event(), whole))
        if len(self._waiting) > self._delay:
            yield self._received()

    def rest(self) -> Iterator[Told]:
        """What the last evaluations wrote."""
        while self._waiting:
            yield self._received()

    def _received(self) -> Told:
        there, arrived, whole = self._waiting.pop(0)
        if arrived is not None:
            arrived.synchronize()
        self._spare.append(there)
        self.all_ended |= bool(there[:, -1].all())
        places, tokens, chosen = there[:, :-1].clone().unflatten(1, (3, -1)).unbind(1)
        return Told(places, tokens, chosen.bool(), whole)
