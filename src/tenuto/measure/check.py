"""Is a schedule safe for a model? A few samples with it and without, and how far off each held unit was.

result = check(model, schedule, classes=[0, 7])
print(result.verdict, result.worst_units()[0])
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tenuto.compilation import computed
from tenuto.errors import UsageError
from tenuto.executor import Executor
from tenuto.holding import Outputs, Unplanned
from tenuto.measure.quality import ALIKE, psnr
from tenuto.models import Model
from tenuto.policies.refreshing import like, reuse_for
from tenuto.residual import Branch, plain
from tenuto.samplers.diffusion import generate
from tenuto.samplers.masked import MaskedSampling, generate_tokens
from tenuto.schedules import Reuse, Schedule

AGREE = 0.95  # of the tokens of the worst text, from which on a schedule counts as safe
PERIODS = (8, 6, 5, 4, 3, 2)  # refresh periods that are tried for a safe one, the cheapest first
LINEAR: Reuse = "linear"
WORDS = (
    (40.0, "cannot be told from those of the full run"),
    (ALIKE, "differ from those of the full run in ways that are hard to see"),
    (20.0, "differ visibly from those of the full run"),
    (-np.inf, "have little to do with those of the full run"),
)


@dataclass(frozen=True)
class Check:
    schedule: Schedule
    likeness: tuple[float, ...]  # of each sample to the full run's: dB of a picture, share of equal tokens of a text
    text: bool
    errors: NDArray[np.float64]  # [unit, step]: how far the stream was off behind a held unit, relative; 0 if computed

    @property
    def worst(self) -> float:
        return min(self.likeness)

    @property
    def safe(self) -> bool:
        return self.worst >= (AGREE if self.text else ALIKE)

    @property
    def verdict(self) -> str:
        if self.text:
            mean = sum(self.likeness) / len(self.likeness)
            return f"{mean:.0%} of the tokens are those of the full run, {self.worst:.0%} in the worst text"
        words = next(words for least, words in WORDS if self.worst >= least)
        return f"the pictures {words}: {np.mean(self.likeness):.1f} dB on average, the worst {self.worst:.1f} dB"

    def worst_units(self, count: int = 3) -> list[tuple[str, int, float]]:
        """(unit, step counted from 1, relative error) where the held branches were furthest off."""
        whole = self.schedule.hold == "output"  # which is off for all units alike
        names, errors = (("the output",), self.errors[:1]) if whole else (self.schedule.units, self.errors)
        order = np.argsort(errors, axis=None)[::-1][:count]
        places = [np.unravel_index(i, errors.shape) for i in order]
        return [(names[u], int(s) + 1, float(errors[u, s])) for u, s in places if errors[u, s]]


class Probing(Executor):
    """Runs a schedule and also computes, at every held unit, what it would have given: for looking, not for speed."""

    def __init__(self, network: nn.Module, schedule: Schedule) -> None:
        super().__init__(network, schedule, mode="skip")
        self.totals = np.zeros(schedule.active.shape)
        self.generations = 0

    def start(self, course: Sequence[float] | None = None) -> Any:
        self.generations += 1
        return _Probed(self, course)

    @property
    def errors(self) -> NDArray[np.float64]:
        return self.totals / max(1, self.generations)


class _Probed:
    def __init__(self, executor: Probing, course: Sequence[float] | None) -> None:
        assert executor.schedule is not None
        self._executor = executor
        self._held = Unplanned(executor.schedule)
        self._held.step = -1
        self._outputs = Outputs(executor.schedule, course) if executor.holds_output else None
        self._rows = {unit: i for i, unit in enumerate(executor.schedule.units)}

    def __call__(self, *inputs: Any, rows: Tensor | None = None, **named: Any) -> Any:
        self._held.step += 1
        self._held.rows = rows
        if self._outputs is not None:
            return self._extrapolated(self._outputs, self._executor.network(*inputs, **named, residual=plain))
        return self._executor.network(*inputs, **named, residual=self._residual)

    def _extrapolated(self, outputs: Outputs, exact: Tensor) -> Tensor:
        """What is held is the output: it is off for all units alike."""
        step = self._held.step
        if self._executor.evaluates(step):
            given: Tensor = outputs.take(step, exact)
            return given
        held: Tensor = outputs.at(step)
        self._executor.totals[:, step] += _relative(held, exact)
        return held

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
    """Samples of what is wanted (classes, captions or prompts) in full and under the schedule, from the same noise.

    options   of the sampler: guidance and solver, or length and block_length
    progress  called after every step, of both runs, with the number of samples
    """
    if not wanted:
        raise UsageError("Nothing was asked for, so there is nothing to compare.")
    schedule.check_fits([unit.name for unit in model.units], model.fingerprints, model.name)
    probing = Probing(model.network, schedule)
    full, held = (
        _sample(model, executor, wanted, schedule.steps, seed, progress, options)
        for executor in (Executor(model.network), probing)
    )
    text = model.architecture.asks_for == "prompt"
    likeness = (full == held).double().mean(dim=1) if text else psnr(held, full)
    return Check(schedule, tuple(likeness.tolist()), text, probing.errors)


def _sample(
    model: Model, executor: Executor, wanted: list[Any], steps: int, seed: int, progress: Any, options: dict[str, Any]
) -> Tensor:
    asks_for = model.architecture.asks_for
    if asks_for == "prompt":
        sampling = MaskedSampling(steps=steps, seed=seed, remasking=model.architecture.remasking, **options)
        prompts = [model.tokenizer.encode(prompt, False) for prompt in wanted]
        return generate_tokens(executor, prompts, sampling=sampling, progress=progress)
    return generate(
        model,
        wanted if asks_for == "class" else None,
        captions=wanted if asks_for == "caption" else None,
        executor=executor,
        steps=steps,
        seed=seed,
        progress=progress,
        **options,
    )


def safe_alternative(check_one: Callable[[Schedule], Check], schedule: Schedule) -> Check | None:
    """The cheapest of the default kind of schedules that is safe, or None; where it bends, a line is tried, too."""
    candidates = [
        like(schedule, every, reuse)
        for every in PERIODS
        if every < schedule.steps
        for reuse in dict.fromkeys((reuse_for(schedule.steps, every), LINEAR))
    ]
    tried = (check_one(one) for one in candidates)
    return next((result for result in tried if result.safe), None)
