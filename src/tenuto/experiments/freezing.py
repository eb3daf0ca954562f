"""Fine-tuning with two fifths of the units' weights left as they are: does SCR tell which?

The task is one that the language model was never shown: to write digits backwards. Every method sees the same batches.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tenuto.executor import Executor
from tenuto.experiments.lab import Lab
from tenuto.experiments.rows import Result, Row, verdict_of
from tenuto.experiments.trials import Bench
from tenuto.experiments.tuning import METHODS, Loss, Method, tune
from tenuto.measure.quality import mean_interval
from tenuto.samplers.masked import MaskedSampling, generate_tokens

STEPS = 200
BATCH = 64
RATE = 5e-4
DIGITS = 5
ASKED = 200  # of each seed, never trained on
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


def freezing(lab: Lab) -> Result:
    rows: list[Row] = []
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
                Row.of(
                    f"{NAMES[method]}: right answers (paper: ROUGE-L, of full fine-tuning's)",
                    name,
                    rouge / PAPER["full"][0],
                    mean_interval(right, 500),
                ),
                Row(
                    f"{NAMES[method]}: training time, full fine-tuning's over its own",
                    name,
                    faster,
                    float(np.mean([run["seconds"] for run in full]) / np.mean([run["seconds"] for run in runs])),
                ),
                Row(f"{NAMES[method]}: parameters trained, share", name, share, runs[0]["share"]),
            ]
        for other, claimed in (("random", True), ("full", False)):
            pairs = [
                a - b
                for one, two in zip(found["scr"], found[other], strict=True)  # type: ignore[index]
                for a, b in zip(one["right"], two["right"], strict=True)
            ]
            change = mean_interval(pairs, 500)
            holds = change[1] > 0 if claimed else change[2] >= -0.01
            rows.append(
                Row.of(f"lowest SCR frozen less {NAMES[other]}, right answers", name, None, change, holds)  # type: ignore[index]
            )
    return Result(
        rows,
        f"{verdict_of(rows)} The paper's claims are that SCR chooses better than chance, and comes near full "
        "fine-tuning.",
        limits="A model of five million parameters and a task of five digits; three random choices of frozen units.",
    )


def _tuned(lab: Lab, bench: Bench, method: Method, seed: int, steps: int) -> dict[str, Any]:
    model = bench.model
    task = _Task(model, seed)
    tuned = tune(model, bench.scores, method, task.loss(), steps=steps, lr=RATE, seed=seed)
    right = task.answered(Executor(tuned.network, mode="eager"))
    lab.say(f"{model.name}, seed {seed}: {NAMES[method]}  {np.mean(right):.3f} right in {tuned.seconds:.1f} s")
    return {
        "right": right,
        "seconds": tuned.seconds,
        "share": tuned.trainable / tuned.parameters,
        "loss": tuned.losses[-1],
    }


class _Task:
    """Digits to be written backwards; a seed's questions are never among its lessons."""

    def __init__(self, model: Any, seed: int) -> None:
        self.model = model
        self.seed = seed
        self.mask, self.end = model.config.mask_token_id, model.config.eos_token_id
        kept = np.random.default_rng(seed).permutation(10**DIGITS)
        self.questions, self.lessons = kept[:ASKED], kept[ASKED:]

    def _posed(self, number: int) -> tuple[list[int], list[int]]:
        digits = f"{number:0{DIGITS}d}"
        prompt = f"Write backwards: {' '.join(digits)}. Answer:"
        tokens = self.model.tokenizer.encode(f"{prompt} {' '.join(reversed(digits))}")
        asked: list[int] = self.model.tokenizer.encode(prompt)
        return asked, [*tokens[len(asked) :], self.end]

    def loss(self) -> Loss:
        """LLaDA's: of each row a share of the answer is masked, and what was there is to be told."""
        order = np.random.default_rng(1000 + self.seed)
        chance = torch.Generator().manual_seed(self.seed)
        device = self.model.device

        def of_batch(network: Any) -> Tensor:
            rows = [self._posed(int(number)) for number in order.choice(self.lessons, BATCH)]
            tokens = torch.tensor([asked + answer for asked, answer in rows])
            answer = torch.zeros_like(tokens, dtype=torch.bool)
            answer[:, len(rows[0][0]) :] = True
            share = torch.rand(len(tokens), 1, generator=chance).clamp(min=0.05)
            hidden = answer & (torch.rand(tokens.shape, generator=chance) < share)
            given = torch.where(hidden, self.mask, tokens)
            logits = network(given.to(device)).float()
            losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens.to(device), reduction="none")
            weights = (hidden / share).to(device)
            return (losses * weights).sum() / answer.sum().to(device)

        return of_batch

    def answered(self, executor: Executor) -> list[float]:
        posed = [self._posed(int(number)) for number in self.questions]
        length = len(posed[0][1])
        sampling = MaskedSampling(steps=length, length=length, block_length=length)
        written = generate_tokens(executor, [asked for asked, _ in posed], sampling=sampling, batch=len(posed)).tolist()
        return [float(row == answer) for row, (_, answer) in zip(written, posed, strict=True)]
