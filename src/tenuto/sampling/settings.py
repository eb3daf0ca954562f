"""How a masked diffusion language model gets from masks to text."""

from dataclasses import dataclass
from typing import Literal, get_args

from tenuto.errors import UsageError, check_whole, is_number

HIGHEST = 1_000_000  # temperature, guidance and factor: beyond it, logits overflow
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
    stop_at_eos: bool = True  # stop when every row has ended; without `parallel`, checked only between blocks
    top_p: float = 1.0  # only the likeliest tokens whose probabilities add up to this
    # Parallel decoding: an evaluation writes every token of the block that is confident enough, and at least one.
    parallel: float | None = None  # the probability from which a token is confident enough
    factor: float | None = None  # instead: write the n surest tokens as long as the n-th has p ≥ 1 − factor / (n + 1)
    # With either: instead of a block, the leftmost masks of the whole text, as many as a block has.
    sliding: bool = False

    def __post_init__(self) -> None:
        for name in ("length", "block_length", "steps"):
            check_whole(name, getattr(self, name))
        check_whole("seed", self.seed, -(2**63), 2**63)
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
        if not is_number(self.temperature) or not 0 <= self.temperature <= HIGHEST:
            raise UsageError(f"The temperature lies between 0 and {HIGHEST:,}, not at {self.temperature}.")
        if not is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise UsageError(f"top_p lies above 0 and is at most 1, not {self.top_p}.")
        if not is_number(self.guidance) or not 0 <= self.guidance <= HIGHEST:
            raise UsageError(f"Guidance lies between 0 and {HIGHEST:,}, not at {self.guidance}.")
        if self.remasking not in get_args(Remasking):
            raise UsageError(f"Remasking is one of {', '.join(get_args(Remasking))}, not {self.remasking!r}.")
        for name in ("stop_at_eos", "sliding"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} is True or False, not {getattr(self, name)!r}.")
        self._check_parallel()

    def _check_parallel(self) -> None:
        if self.parallel is not None and self.factor is not None:
            raise UsageError("Give the threshold of parallel decoding or its factor, not both: each is a rule.")
        if self.parallel is not None and (not is_number(self.parallel) or not 0 < self.parallel <= 1):
            raise UsageError(
                f"The threshold of parallel decoding lies above 0 and is at most 1, not {self.parallel!r}."
            )
        if self.factor is not None and (not is_number(self.factor) or not 0 < self.factor <= HIGHEST):
            raise UsageError(
                f"The factor of parallel decoding is a positive number, at most {HIGHEST:,}, not {self.factor!r}."
            )
        if self.in_parallel and self.steps != self.length:
            raise UsageError(
                f"Parallel decoding takes as many steps as it needs, at most one for each token. So {self.steps} steps "
                f"for {self.length} tokens cannot be asked for: leave the steps out, or the parallel decoding."
            )
        if self.sliding and not self.in_parallel:
            raise UsageError("A sliding window goes with parallel decoding: give a threshold too (parallel=0.9).")
        if self.in_parallel and self.remasking == "random":
            raise UsageError("Parallel decoding writes by confidence, so remasking cannot be random.")

    @property
    def in_parallel(self) -> bool:
        """Whether each evaluation writes as many tokens as it is sure of."""
        return self.parallel is not None or self.factor is not None

    @property
    def blocks(self) -> int:
        return self.length // self.block_length

    @property
    def writes(self) -> tuple[int, ...]:
        """How many tokens each step of a block writes: equal shares; the first steps also write the remainder."""
        steps = self.steps // self.blocks
        share, remainder = divmod(self.block_length, steps)
        return tuple(share + (step < remainder) for step in range(steps))
