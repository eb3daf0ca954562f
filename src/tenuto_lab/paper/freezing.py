"""Fine-tuning with two fifths of the units' weights frozen: does SCR tell which units to freeze?

The task is new to the language model: to write digits backwards. Every method sees the same batches. Adapters start at
zero and have few parameters, so they use their usual higher learning rate. In the end all methods may have learned the
task, so the methods are compared by their mean loss over all lessons: a method that learns sooner has a smaller one.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.runtime.executor import Executor
from tenuto.sampling.masked import generate_tokens, sampling_for
from tenuto_lab.judging.statistics import Interval, mean_interval
from tenuto_lab.judging.verdicts import at_least, better
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, Figure, Panel, spread
from tenuto_lab.paper.trials import Bench
from tenuto_lab.paper.tuning import METHODS, Loss, Method, tune
from tenuto_lab.paper.ways import time_row

STEPS = 100
TIMED = 20  # lessons
TOGETHER = 5  # lessons that are averaged to one point of the figure
BATCH = 64
RATES: dict[Method, float] = {"full": 5e-4, "lora": 5e-3, "scr": 5e-4, "random": 5e-4}
DIGITS = 8
ASKED = 200  # questions for each seed, never trained on
NEAR = -0.01  # share of right answers; above it, as good as full fine-tuning
NEAR_TOLD = "nearly as good: at most 0.01 fewer"
# (ROUGE-L, speed-up of training, parameters trained of 8.0 billion)
PAPER: dict[Method, tuple[float, float, float]] = {
    "full": (42.1, 1.0, 1.0),
    "lora": (41.4, 1.5, 26 / 8000),
    "scr": (41.9, 1.6, 0.6),
    "random": (39.8, 1.6, 0.6),
}
NAMES: dict[Method, str] = {
    "full": "full fine-tuning",
    "lora": "LoRA, r = 16",
    "scr": "lowest SCR frozen",
    "random": "random frozen",
}


def freezing(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    panels: list[Panel] = []
    for bench in lab.writers():
        name, steps = bench.model.name, lab.steps or STEPS
        found: dict[Method, list[dict[str, Any]]] = {}
        for method in METHODS:
            found[method] = [
                lab.once(
                    f"{name}, {steps} steps, seed {seed}: {method}",
                    partial(_tuned, lab, bench, method, seed, steps),
                )
                for seed in range(lab.seeds)
            ]
        full = found["full"]
        for method, runs in found.items():
            rouge, faster, share = PAPER[method]
            right = [value for run in runs for value in run["right"]]
            rows += [
                ClaimRow.of(
                    f"{NAMES[method]}: right answers (paper: ROUGE-L, of full fine-tuning's)",
                    name,
                    rouge / PAPER["full"][0],
                    mean_interval(right, 500),
                ),
                ClaimRow.of(
                    f"{NAMES[method]}: loss of a lesson, mean of all, nats a token",
                    name,
                    None,
                    mean_interval([float(np.mean(run["losses"])) for run in runs], 500),
                ),
                time_row(
                    f"{NAMES[method]}: training time, full fine-tuning's over its own",
                    bench,
                    faster,
                    _faster(_seconds(lab, bench, "full"), _seconds(lab, bench, method)),
                ),
                ClaimRow(f"{NAMES[method]}: parameters trained, share", name, share, runs[0]["share"]),
            ]
        ahead = _difference(found["random"], found["scr"], "losses")
        rows.append(
            ClaimRow.of("loss of a lesson, random frozen less lowest SCR frozen", name, None, ahead, better(ahead))
        )
        behind = _difference(found["scr"], full, "right")
        rows.append(
            ClaimRow.of(
                "right answers, lowest SCR frozen less full fine-tuning",
                name,
                None,
                behind,
                at_least(behind, NEAR),
                NEAR_TOLD,
            )
        )
        panels.append(Panel(name, {NAMES[method]: _course(runs) for method, runs in found.items()}, "lesson", "loss"))
    return ExperimentResult(
        rows,
        "The mean loss of a lesson, in nats a token, is "
        + ", ".join(f"{spread(rows, f'{NAMES[method]}: loss')} ({NAMES[method]})" for method in METHODS)
        + ". The paper's claims are that SCR chooses better than chance, and comes near full fine-tuning.",
        Figure("lines", panels),
        limits=f"A small model and a task of {DIGITS} digits; one random choice of frozen units for each seed.",
        rests_on=f"{ASKED} questions after {lab.steps or STEPS} lessons, of each of {lab.seeds} seeds",
    )


def _faster(full: float | None, own: float | None) -> float | None:
    return full / own if full and own else None


def _seconds(lab: Lab, bench: Bench, method: Method) -> float | None:
    """Of a few lessons, after the same number of them; None if nothing may be timed."""

    def measure() -> dict[str, Any]:
        lessons = min(lab.steps or STEPS, TIMED)
        took = [
            tune(bench.model, bench.scores, method, _Task(bench.model, 0).loss(), steps=lessons, lr=RATES[method])
            for _ in range(2)
        ]
        return {"seconds": took[-1].seconds}

    return lab.time(f"{bench.model.name}: training time, {method}", measure).get("seconds")


def _difference(some: list[dict[str, Any]], others: list[dict[str, Any]], value: str) -> Interval:
    """The mean difference over the seeds, on the same questions after the same lessons.

    The unit of comparison is the seed, because each seed has one choice of frozen units.
    """
    seeds = [float(np.mean(one[value]) - np.mean(two[value])) for one, two in zip(some, others, strict=True)]
    return mean_interval(seeds, 500)


def _course(runs: list[dict[str, Any]]) -> list[list[float]]:
    """(lesson, loss), averaged over the seeds and over groups of lessons."""
    losses = np.mean([run["losses"] for run in runs], axis=0)
    parts = np.array_split(np.arange(len(losses)), max(1, len(losses) // TOGETHER))
    return [[float(part.mean() + 1), float(losses[part].mean())] for part in parts]


def _tuned(lab: Lab, bench: Bench, method: Method, seed: int, steps: int) -> dict[str, Any]:
    model = bench.model
    task = _Task(model, seed)
    tuned = tune(model, bench.scores, method, task.loss(), steps=steps, lr=RATES[method], seed=seed)
    right = task.answered(Executor(tuned.network, mode="eager"))
    lab.say(
        f"{model.name}, seed {seed}: {NAMES[method]}  {np.mean(right):.3f} right, "
        f"loss {np.mean(tuned.losses):.3f}, in the end {tuned.losses[-1]:.3g}, in {tuned.seconds:.1f} s"
    )
    return {
        "right": right,
        "share": tuned.trainable / tuned.parameters,
        "losses": list(tuned.losses),
    }


class _Task:
    """Writing digits backwards. The questions of a seed are never among its lessons."""

    def __init__(self, model: Any, seed: int) -> None:
        self.model = model
        self.seed = seed
        self.mask, self.end = model.config.mask_token_id, model.config.eos_token_id
        self.questions = np.random.default_rng(seed).choice(10**DIGITS, ASKED, replace=False)

    def _posed(self, number: int) -> tuple[list[int], list[int]]:
        digits = f"{number:0{DIGITS}d}"
        prompt = f"Write backwards: {' '.join(digits)}. Answer:"
        tokens = self.model.tokenizer.encode(f"{prompt} {' '.join(reversed(digits))}")
        asked: list[int] = self.model.tokenizer.encode(prompt)
        return asked, [*tokens[len(asked) :], self.end]

    def loss(self) -> Loss:
        """LLaDA's loss: a random share of each answer is masked, and the network predicts the masked tokens."""
        order = np.random.default_rng(1000 + self.seed)
        chance = torch.Generator().manual_seed(self.seed)
        device = self.model.device

        def of_batch(network: Any) -> Tensor:
            numbers = order.integers(10**DIGITS, size=2 * BATCH)
            tokens, answer = self._rows(numbers[~np.isin(numbers, self.questions)][:BATCH])
            share = torch.rand(len(tokens), 1, generator=chance).clamp(min=0.05)
            hidden = answer & (torch.rand(tokens.shape, generator=chance) < share)
            given = torch.where(hidden, self.mask, tokens)
            logits, told = network(given.to(device)).float(), tokens.to(device)
            losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), told, reduction="none")
            return (losses * (hidden / share).to(device)).sum() / answer.sum().to(device)

        return of_batch

    def _rows(self, numbers: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The tokens of questions with their answers, and a mask of the answers' tokens."""
        posed = [self._posed(int(number)) for number in numbers]
        tokens = torch.tensor([asked + answer for asked, answer in posed])
        answers = torch.zeros_like(tokens, dtype=torch.bool)
        answers[:, len(posed[0][0]) :] = True
        return tokens, answers

    def answered(self, executor: Executor) -> list[float]:
        posed = [self._posed(int(number)) for number in self.questions]
        length = len(posed[0][1])
        sampling = sampling_for(self.model, steps=length, length=length, block_length=length)
        written = generate_tokens(executor, [asked for asked, _ in posed], sampling=sampling, batch=len(posed)).tolist()
        return [float(row == answer) for row, (_, answer) in zip(written, posed, strict=True)]
