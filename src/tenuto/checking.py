"""Is a schedule safe for a model? A few samples are made with and without the schedule, and compared.

result = check(model, schedule, [0, 7])
print(result.verdict, result.worst_units()[0])

Pictures are compared with those of the full run. Texts are not: once one greedily chosen token differs, all later
tokens depend on it, and two texts of equal quality soon share few positions. So a text is judged step by step: of the
tokens that were written, how many would the full network also have written, given the same text so far?
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto.quality import ALIKE, psnr
from tenuto.runtime.compilation import computed
from tenuto.runtime.executor import Executor
from tenuto.runtime.residual import Branch, plain
from tenuto.runtime.units.holding import Unplanned
from tenuto.sampling.decoding import decoder_of
from tenuto.sampling.masked import MaskedSampling, encoded, sampling_for, write_tokens
from tenuto.sampling.pictures import generate
from tenuto.scheduling.refresh import like
from tenuto.scheduling.schedule import Predict, Schedule

AGREE = 0.95  # a schedule is safe if at least this share of the worst text's tokens agree
SHARES = (8, 6, 5, 4, 3, 2)  # one step of so many is computed in the schedules that are tried for a safe one
DEGREES: tuple[Predict, ...] = ("quadratic", "linear")
MARGIN = 3.0  # dB above the threshold; other pictures than those compared may be this much worse
WORDS = (
    (40.0, "cannot be told from those of the full run"),
    (ALIKE, "differ from those of the full run in ways that are hard to see"),
    (20.0, "differ visibly from those of the full run"),
    (-np.inf, "have little to do with those of the full run"),
)
DIVERGES = (
    "Once a token differs, all later tokens depend on it, so the share of equal tokens says little about quality. "
    "Read both texts, or let `tenuto check` compare them step by step."
)


@dataclass(frozen=True)
class Check:
    schedule: Schedule
    # For each sample. Picture: its PSNR to the full run's picture, in dB (infinite if they are identical). Text: the
    # share of its tokens that the full network would also have written.
    likeness: tuple[float, ...]
    text: bool
    # Relative errors of held values; 0 where a value is computed. [unit, step]: of the stream after a held unit;
    # [1, step]: of the network's output, if the schedule keeps the output.
    errors: NDArray[np.float64]

    @property
    def worst(self) -> float:
        return min(self.likeness)

    @property
    def safe(self) -> bool:
        return self.worst >= (AGREE if self.text else ALIKE)

    @property
    def clearly_safe(self) -> bool:
        """Whether the worst picture is above the threshold by a margin."""
        return not self.text and self.worst >= ALIKE + MARGIN

    @property
    def verdict(self) -> str:
        return _of_texts(self.likeness) if self.text else of_pictures(self.likeness)

    def worst_units(self, count: int = 3) -> list[tuple[str, int, float]]:
        """The largest errors of held values: (unit or "the output", step counted from 1, relative error)."""
        names = ("the output",) if self.schedule.keep == "output" else self.schedule.units
        order = np.argsort(self.errors, axis=None)[::-1][:count]
        places = [np.unravel_index(i, self.errors.shape) for i in order]
        return [(names[u], int(s) + 1, float(self.errors[u, s])) for u, s in places if self.errors[u, s]]


def of_pictures(decibels: Sequence[float]) -> str:
    """Says in words how near pictures are to those of the full run."""
    differing = [value for value in decibels if value != np.inf]
    same = len(decibels) - len(differing)
    if not differing:
        return "the pictures are identical to those of the full run"
    words = next(words for least, words in WORDS if min(differing) >= least)
    if len(decibels) == 1:
        return f"the pictures {words}: {differing[0]:.1f} dB"
    figures = f"{np.mean(differing):.1f} dB on average, the worst {min(differing):.1f} dB"
    return f"the pictures {words}: {figures}" + (f"; {same} of {len(decibels)} are identical" if same else "")


def of_two_texts(tokens: Sequence[int], reference: Sequence[int]) -> str:
    """Says in words how far a text follows the full run's text, and what this means."""
    pairs = list(zip(tokens, reference, strict=True))
    first = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    if first is None:
        return "The text is identical to that of the full run."
    equal = sum(one == other for one, other in pairs) / len(pairs)
    begins = "the first token" if first == 0 else f"token {first + 1}"
    return f"The texts differ from {begins} on, and {equal:.0%} of their {len(pairs)} tokens are equal. {DIVERGES}"


def _of_texts(shares: Sequence[float]) -> str:
    if min(shares) == 1:
        return "given the same text so far, the full network would have written every token as well"
    worst = f", and {min(shares):.0%} in the worst text" if len(shares) > 1 else ""
    return f"given the same text so far, the full network would have written {np.mean(shares):.0%} of the tokens{worst}"


class Probing(Executor):
    """Runs a schedule and also computes the exact value of everything held: to measure errors, not for speed."""

    def __init__(self, network: nn.Module, schedule: Schedule) -> None:
        super().__init__(network, schedule, mode="skip")
        self.totals = np.zeros((1, schedule.steps) if schedule.keep == "output" else schedule.active.shape)
        self.generations = 0
        self.inputs: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})  # of the last step
        self.full: Any = None  # the full network's output for these inputs

    def start(self) -> Any:
        self.generations += 1
        return _Probed(self)

    def watch(self, step: int, predicted: Tensor, exact: Tensor) -> None:
        """Notes the error of a predicted output."""
        self.totals[0, step] += _relative(predicted, exact)

    @property
    def errors(self) -> NDArray[np.float64]:
        return self.totals / max(1, self.generations)


class _Probed:
    def __init__(self, executor: Probing) -> None:
        assert executor.schedule is not None
        self._executor = executor
        self._held = Unplanned(executor.schedule)
        self._held.step = -1
        self._rows = {unit: i for i, unit in enumerate(executor.schedule.units)}

    def evaluate_at(self, step: int, *inputs: Any, **named: Any) -> Any:
        self._held.step = step
        return self._executor.network(*inputs, **named, residual=plain)

    def __call__(self, *inputs: Any, rows: Tensor | None = None, **named: Any) -> Any:
        self._held.step += 1
        self._held.rows = rows
        executor = self._executor
        executor.inputs = inputs, named
        if executor.full_steps[self._held.step]:
            executor.full = executor.network(*inputs, **named, residual=self._residual)
            return executor.full
        executor.full = executor.network(*inputs, **named, residual=plain)
        return executor.network(*inputs, **named, residual=self._residual)

    def _residual(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        after, step = self._held(unit, h, branch, gate), self._held.step
        if not self._held.schedule.active[self._rows[unit], step]:
            exact, _ = computed(h, branch, gate)
            self._executor.totals[self._rows[unit], step] += _relative(after, exact)
        return after


def _relative(given: Tensor, exact: Tensor) -> float:
    return float(torch.linalg.vector_norm((given - exact).float()) / torch.linalg.vector_norm(exact.float()))


def check(
    model: Model,
    schedule: Schedule,
    wanted: list[Any],
    *,
    seed: int = 0,
    progress: Callable[[int], object] = lambda samples: None,
    **options: Any,
) -> Check:
    """Generate samples for `wanted` (classes, captions or prompts) and compare them with the full network's.

    Latents are decoded first, if the model's VAE is stored beside the model.

    options   of the sampler: guidance and solver, or length and block_length
    progress  called with the number of samples after every evaluation, with the schedule and without
    """
    if not wanted:
        raise UsageError("Nothing was asked for, so there is nothing to compare.")
    model.check_fits(schedule)
    probing = Probing(model.network, schedule)
    if model.architecture.asks_for == "prompt":
        sampling = sampling_for(model, steps=schedule.steps, seed=seed, **options)
        shares = _written_alike(probing, encoded(model, wanted), sampling, progress)
        return Check(schedule, shares, True, probing.errors)
    by_class = model.architecture.asks_for == "class"
    full, held = (
        generate(
            model,
            wanted if by_class else None,
            captions=None if by_class else wanted,
            executor=executor,
            steps=schedule.steps,
            seed=seed,
            progress=progress,
            watch=watch,
            **options,
        )
        for executor, watch in ((Executor(model.network), None), (probing, probing.watch))
    )
    decoded = decoder_of(model)
    return Check(schedule, tuple(psnr(decoded(held), decoded(full)).tolist()), False, probing.errors)


@torch.inference_mode()
def _written_alike(
    probing: Probing, prompts: list[list[int]], sampling: MaskedSampling, progress: Callable[[int], object]
) -> tuple[float, ...]:
    """For each text, the share of its tokens that the full network would have written, given the same text so far."""
    if sampling.temperature:
        raise UsageError("A text is checked by its likeliest tokens, so the temperature must be 0.")
    mask: int = probing.network.config.mask_token_id  # type: ignore[attr-defined]
    alike, written = torch.zeros(len(prompts)), torch.zeros(len(prompts))
    stream = write_tokens(probing, prompts, sampling=sampling)
    for step in stream:
        rows = len(step.tokens)
        (tokens, *_), named = probing.inputs
        asked = named["positions"][:rows] - (tokens.shape[1] - sampling.length)  # counted from the prompts' ends
        logits = probing.full.float()
        if sampling.guidance:
            seeing, unseeing = logits.chunk(2)
            logits = unseeing + (sampling.guidance + 1) * (seeing - unseeing)
        logits[..., mask] = -torch.inf
        places = (asked[:, None, :] == step.positions[:, :, None]).int().argmax(-1)  # index of each written token
        guesses = logits.argmax(-1).gather(1, places)
        alike[step.first : step.first + rows] += (guesses == step.tokens).sum(1).cpu()
        written[step.first : step.first + rows] += step.tokens.shape[1]
        progress(rows)
        progress(rows)
    return tuple((alike / written).tolist())


def safe_alternative(check_one: Callable[[Schedule], Check], schedule: Schedule) -> Check | None:
    """The safe schedule of the default kind whose work is nearest to this schedule's work; None if none is safe.

    A schedule that is safe by a margin is preferred to a nearer one that is only just safe. Of two that are equally
    near, the cheaper one is taken. Linear extrapolation is tried beside the default degree.
    """
    candidates = [
        like(schedule, count, predict)
        for count in dict.fromkeys(max(2, round(schedule.steps / share)) for share in SHARES)
        if count < schedule.steps
        for predict in DEGREES
    ]
    candidates.sort(key=lambda one: (round(abs(one.budget - schedule.budget), 9), one.budget))
    nearest = None
    for result in (check_one(one) for one in candidates if one != schedule):
        if result.clearly_safe:
            return result
        if result.safe and nearest is None:
            nearest = result
    return nearest
