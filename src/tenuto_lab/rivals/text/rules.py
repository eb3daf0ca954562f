"""Which positions an evaluation computes: published caches and ours as rules of one loop.

Every row goes at its own pace, as if it were alone: it has its own block, and its own steps are counted. So accuracy
and work do not depend on the batch. Work is counted in evaluation-equivalents: computed positions, divided by all.

everything   full inference
fast_dllm    Fast-dLLM (Wu et al.): everything at the first step of a block; then the block, and with the prefix cache
             everything behind it
dkv_cache    dKV-Cache-Decode (Ma et al.): everything at the first two steps of a block and at every R-th; else all
             positions but those that were written before the last evaluation
elastic      Elastic-Cache's window (Nguyen-Tri et al.): the leftmost masks of the whole text instead of a block, and
             tokens just written. Its trigger, which looks at attention weights to recompute layers, is left out
ours         tenuto.sampling.parallel: tokens just written, then the block's masks from left to right, at most as many
             in all as a block has (`lean`; otherwise filled up with other tokens of the block); everything at every
             R-th evaluation, or at those that a function names. `again`: when a row begins its next block, the
             finished one, or everything, is computed once more. `after`: everything is computed when a row has got so
             many tokens since the last time
checked      any of these with a check of the cache
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.models.language import LanguageNetwork
from tenuto.runtime.keys import Keys
from tenuto.runtime.positions import take
from tenuto.runtime.residual import Branch, plain
from tenuto.sampling.guesses import Likeliest, accepted, most_confident
from tenuto.sampling.prompts import Canvas
from tenuto.sampling.settings import MaskedSampling
from tenuto_lab.rivals.text.dllm_cache import DLLMCache

NEVER = 10**6 + 1  # an evaluation at which no rule computes everything
CHANGE = 0.02  # of the probabilities at a block's masks, on average, above which a check of the cache fails
DROPPED = 0.7  # rows whose text has ended are computed no further, once no more than this share of the rows is left


@dataclass
class State:
    """Texts while they are written. Each of the following is [B, N], or [B] where it says so."""

    tokens: Tensor
    masked: Tensor
    first: Tensor  # [B]: where the row's block begins
    step: Tensor  # [B]: evaluations since the row's block began
    evaluation: int  # of all rows
    before: Tensor  # what was masked at the last evaluation
    stale: Tensor  # written since its keys and values were computed
    answer: Tensor  # everything behind the prompts
    block_length: int
    places: Tensor  # [N]
    since: Tensor  # [B]: tokens written since everything was computed

    @property
    def block(self) -> Tensor:
        first = self.first[:, None]
        return (self.places >= first) & (self.places < first + self.block_length)

    def of(self, left: Tensor) -> "State":
        """The rows that are left."""
        rows = {
            field.name: getattr(self, field.name)[left]
            for field in fields(self)
            if field.name not in ("evaluation", "block_length", "places")
        }
        return replace(self, **rows)


@dataclass(frozen=True)
class Rule:
    """A name, which positions are computed, and where tokens may be written (by default the masks of the block)."""

    name: str
    computed: Callable[[State], Tensor]
    candidates: Callable[[State], Tensor] = lambda state: state.masked & state.block
    held: frozenset[str] = frozenset()  # units that only evaluations of everything compute
    begin: Callable[[], DLLMCache] | None = None  # begins a generation that decides by itself what it computes
    block_length: int | None = None  # instead of the sampling's; the last block of a text may be shorter
    checks: bool = False  # a row stops to use the cache when the cache would have predicted something else


def everything(state: State) -> Tensor:
    return torch.ones_like(state.masked)


def all_in_window(window: int) -> Rule:
    """Full inference that writes among the leftmost masks of the whole text instead of a block."""
    return Rule(f"everything computed, a window of {window}", everything, lambda state: leftmost(state.masked, window))


def in_blocks(rule: Rule, block_length: int) -> Rule:
    return replace(rule, name=f"{rule.name}, blocks of {block_length}", block_length=block_length)


def fast_dllm(dual: bool) -> Rule:
    def computed(state: State) -> Tensor:
        later = state.block if dual else state.places >= state.first[:, None]
        return later | (state.step == 0)[:, None]

    return Rule(f"Fast-dLLM, {'dual' if dual else 'prefix'} cache", computed)


def dkv_cache(period: int) -> Rule:
    def computed(state: State) -> Tensor:
        return state.before | ((state.step <= 1) | (state.step % period == 0))[:, None]

    return Rule(f"dKV-Cache, every {period}", computed)


def dllm_cache(prompt_period: int, answer_period: int, ratio: float = 0.25) -> Rule:
    name = f"dLLM-Cache, prompt every {prompt_period}, answer every {answer_period}"
    return Rule(name, everything, begin=lambda: DLLMCache(prompt_period, answer_period, ratio))


def leftmost(flags: Tensor, count: int) -> Tensor:
    """[B, N] -> the first `count` of each row that are set."""
    return flags & (flags.cumsum(1) <= count)


def elastic(window: int, period: int | None = None) -> Rule:
    """period: everything is computed again at every so many evaluations, which is ours; None: only at the first"""

    def candidates(state: State) -> Tensor:
        return leftmost(state.masked, window)

    def computed(state: State) -> Tensor:
        again = state.evaluation == 0 if period is None else state.evaluation % period == 0
        return candidates(state) | state.stale | again

    ours = "" if period is None else f", everything every {period}"
    return Rule(f"Elastic-Cache's window of {window}{ours}", computed, candidates)


def ours(
    period: int | Callable[[int], bool],
    held: frozenset[str] = frozenset(),
    name: str | None = None,
    window: int | None = None,
    lean: bool = False,
    again: Literal["nothing", "block", "everything"] = "nothing",
    after: int | None = None,
    prompt: Callable[[int], bool] = lambda evaluation: True,
) -> Rule:
    """period: or a function that says whether an evaluation, counted from 0, computes everything

    window  instead of a block, the leftmost masks of the whole text, so many of them
    lean    no other tokens

    again   what is computed once more when a row begins its next block
    after   tokens of a row, after which everything is computed, beside the period
    prompt  whether an evaluation that computes everything computes the prompt, too, or the answer only
    """

    def inside(state: State) -> Tensor:
        return state.block if window is None else leftmost(state.masked, window)

    def candidates(state: State) -> Tensor:
        return state.masked & inside(state)

    def computed(state: State) -> Tensor:
        now = period(state.evaluation) if callable(period) else state.evaluation % period == 0
        if now:
            return torch.ones_like(state.masked) if prompt(state.evaluation) else state.answer
        n, near = len(state.places), inside(state)
        rank = torch.where(near, torch.where(state.masked, 1, 2), torch.where(state.answer, 3, 4))
        rank = torch.where(state.stale, 0, rank)
        order = (rank * n + state.places).argsort(1)[:, : max(window or state.block_length, 2)]
        chosen = torch.zeros_like(state.masked).scatter_(1, order, True)
        chosen = chosen & (rank < 2) if lean else chosen
        if after is not None:
            chosen = chosen | (state.since >= after)[:, None]
        begins = (state.step == 0)[:, None]
        if again == "everything":
            return chosen | begins
        if again == "block":  # and all masks of the block, for which there was less room
            finished = state.answer & (state.places < state.first[:, None])
            finished &= state.places >= state.first[:, None] - state.block_length
            return chosen | (begins & (finished | candidates(state)))
        return chosen

    return Rule(name or f"ours, everything every {period}", computed, candidates, held)


def checked(rule: Rule, name: str) -> Rule:
    """The rule, with a check of the cache at every evaluation that computes everything, except for the first.

    Before it, the evaluation that the cache would allow is made as well. The two are compared at the masks that both
    have computed. The check fails if the probabilities of the predicted tokens differ by more than CHANGE on average.
    Then all further evaluations compute everything for this row. Where the two predict different tokens, the least
    difference counts that is possible: a token that is not the likeliest has at most min(p, 1 − p), p being the
    likeliest one's probability.
    """
    return replace(rule, name=name, checks=True)


@dataclass(frozen=True)
class Outcome:
    tokens: Tensor  # [B, length]
    evaluations: Tensor  # [B]: until the row had ended
    work: Tensor  # [B]: evaluation-equivalents


@torch.inference_mode()
def write(
    network: LanguageNetwork, prompts: Sequence[Sequence[int]], sampling: MaskedSampling, rule: Rule, units: int = 0
) -> Outcome:
    """What is written greedily after each prompt under a rule.

    Without parallel decoding, an evaluation writes the surest token. units: how many the network has, if some are held
    """
    if network.shift:
        raise UsageError("The rules are for networks that predict a token at its own position, as LLaDA does.")
    config, device = network.config, next(network.parameters()).device
    block_length = rule.block_length or sampling.block_length
    canvas = Canvas(prompts, config, sampling, 0, 1, device)
    tokens, width, real = canvas.tokens, canvas.width, canvas.real
    places = torch.arange(tokens.shape[1], device=device)
    answer = (places >= width).expand_as(tokens)
    nothing = torch.zeros_like(answer)
    first = torch.full((len(tokens),), width, device=device)
    state = State(tokens, nothing, first, first * 0, 0, nothing, nothing, answer, block_length, places, first * 0)
    keys, read = Keys(), Likeliest(config.mask_token_id)
    holding, cache = Holding(rule.held), None if rule.begin is None else rule.begin()
    evaluations, work = torch.zeros_like(first), torch.zeros(len(tokens), device=device)
    result, texts = tokens.clone(), torch.arange(len(tokens), device=device)  # which texts the rows are
    trusts = torch.ones(len(tokens), dtype=torch.bool, device=device)  # whether a row still uses the cache
    while True:
        state.masked = (state.tokens == config.mask_token_id) & state.answer
        wanted = state.masked
        if sampling.stop_at_eos:
            wanted = wanted & ((state.tokens == config.eos_token_id) & state.answer).cumsum(1).eq(0)
        going = wanted.any(1)
        if not bool(going.any()):
            break
        if int(going.sum()) <= DROPPED * len(going):
            result[texts] = state.tokens
            left = going.nonzero()[:, 0]
            state, texts, wanted, going = state.of(left), texts[left], wanted[left], going[left]
            trusts = trusts[left]
            real = None if real is None else real[left]
            holding.drop(left)
            if cache is None:
                keys = keys_of(keys, left, network)
            else:
                cache.drop(left)
        there = torch.ones_like(state.answer) if real is None else real
        begins = width + (wanted.to(torch.uint8).argmax(1) - width) // block_length * block_length
        state.step = torch.where(begins != state.first, 0, state.step)
        state.first = torch.where(going, begins, state.first)
        chosen = rule.computed(state) & there
        tested, would = trusts & rule.checks & (chosen | ~there).all(1) & (state.evaluation > 0), None
        if bool(tested.any()):
            would = without_everything(network, state, rule, keys, there, real, tested & going, read)
        chosen = (chosen | ~trusts[:, None]) & there
        candidates = rule.candidates(state) & chosen & going[:, None]
        rows = None if bool((chosen | ~there).all()) else indices(chosen)
        asked = indices(candidates)
        holding.rows = rows
        share = chosen.sum(1) / there.sum(1)
        if cache is not None:
            (guesses, likely), done = cache(network, state.tokens, width, real, asked, read)
            share = torch.full_like(share, done)
        else:
            guesses, likely = network(
                state.tokens,
                residual=holding if rule.held else plain,
                attention_mask=real,
                positions=asked,
                memory=(keys, rows),
                read=read,
            )
        may = candidates.gather(1, asked) & first_of_its_kind(asked)
        if sampling.in_parallel:
            written = accepted(likely, likely, may, sampling)
        else:
            surest = most_confident(likely.masked_fill(~may, -torch.inf), 1)
            written = torch.zeros_like(may).scatter_(1, surest, True) & may
        if rows is not None and rule.held:
            share = share * (1 - len(rule.held) / units)
        evaluations[texts] += going
        work[texts] += going * share
        if would is not None:
            predicted, sure, both, cost = would
            work[texts] += going * tested * cost
            here = scattered(state.tokens, asked, guesses)
            surest = scattered(torch.zeros(state.tokens.shape, device=device), asked, likely.float())
            most, most_cached = torch.minimum(surest, 1 - surest), torch.minimum(sure, 1 - sure)
            apart = torch.maximum(sure - most, surest - most_cached)
            apart = torch.where(predicted == here, (sure - surest).abs(), apart)
            average = (apart * both).sum(1) / both.sum(1).clamp(min=1)
            trusts = trusts & ~(tested & (average > CHANGE))
        state.before = state.masked
        now = put_flags(torch.zeros_like(state.answer), asked, written)
        guesses = torch.where(written, guesses, state.tokens.gather(1, asked))
        state.tokens.copy_(scattered(state.tokens, asked, guesses))
        state.stale = (state.stale & ~chosen) | now
        state.since = torch.where((chosen | ~there).all(1), 0, state.since) + now.sum(1)
        state.step = state.step + 1
        state.evaluation += 1
    result[texts] = state.tokens
    return Outcome(result[:, width:], evaluations, work)


def without_everything(
    network: LanguageNetwork,
    state: State,
    rule: Rule,
    keys: Keys,
    there: Tensor,
    real: Tensor | None,
    rows: Tensor,
    read: Likeliest,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What is predicted for rows [B] if not everything is computed: tokens, their probabilities and where, [B, N] each.

    And its work [B]. The keys that this overwrites are computed again by the evaluation of everything.
    """
    chosen = rule.computed(replace(state, evaluation=NEVER)) & there
    candidates = rule.candidates(state) & chosen & rows[:, None]
    asked = indices(candidates)
    guesses, likely = network(
        state.tokens, attention_mask=real, positions=asked, memory=(keys, indices(chosen)), read=read
    )
    nothing = torch.zeros(state.tokens.shape, device=likely.device)
    predicted, sure = scattered(state.tokens, asked, guesses), scattered(nothing, asked, likely.float())
    return predicted, sure, candidates, chosen.sum(1) / there.sum(1)


def scattered(tokens: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """[B, N] with the values at places [B, P]; where a row repeats its first place, the first value counts."""
    return tokens.scatter(1, places[:, 1:], values[:, 1:]).scatter(1, places[:, :1], values[:, :1])


def keys_of(keys: Keys, left: Tensor, network: LanguageNetwork) -> Keys:
    """The KV cache of the rows that are left."""
    kept = Keys()
    for block in network.parts()[1]:
        kept.write(block.name, *(one[left] for one in keys.of(block.name)))
    return kept


def indices(flags: Tensor) -> Tensor:
    """[B, N] bool -> the set places of each row, [B, P]; rows with fewer repeat their first one."""
    count = int(flags.sum(1).max())
    order = (~flags).to(torch.uint8).sort(dim=1, stable=True).indices[:, : max(count, 1)]
    return torch.where(flags.gather(1, order), order, order[:, :1])


def first_of_its_kind(rows: Tensor) -> Tensor:
    """[B, P]: False where a place repeats the row's first one."""
    repeated = rows == rows[:, :1]
    repeated[:, 0] = False
    return ~repeated


def put_flags(flags: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """Set flags at rows [B, P] where values are True; a repeated place that is False changes nothing."""
    return flags.to(torch.int32).scatter_add(1, rows, values.to(torch.int32)) > 0


class Holding:
    """The seam inside a block step: held units add what they added at the last evaluation of everything."""

    def __init__(self, held: frozenset[str]) -> None:
        self.held = held
        self.rows: Tensor | None = None
        self._kept: dict[str, Tensor] = {}

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        if unit not in self.held:
            return h + branch()
        if self.rows is None:
            self._kept[unit] = branch()
            return h + self._kept[unit]
        return h + take(self._kept[unit], self.rows)

    def drop(self, left: Tensor) -> None:
        """Keep only the rows that are left."""
        self._kept = {unit: kept[left] for unit, kept in self._kept.items()}
