"""The conditions of an experiment: the models, the number of samples, and the trials measured so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import tenuto
from tenuto.errors import UsageError
from tenuto.journal import Journal
from tenuto_lab.paper.trials import Bench, PictureBench, TextBench

REFERENCE = ("tiny-llada", "tiny-dit", "tiny-uvit", "tiny-sdxl")
Say = Callable[[str], object]


@dataclass
class Lab:
    models: Sequence[str] = REFERENCE
    samples: int = 100  # for each seed
    seeds: int = 3
    steps: int | None = None  # steps of the full run; None: the experiment's own number
    device: str | torch.device = "cpu"
    journal: Journal | None = None
    say: Say = lambda text: None
    _benches: dict[str, Bench] = field(default_factory=dict)

    def once(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The journal's entry of this name for this number of samples. If there is none, measures and records it.

        Experiments with a common journal share their trials.
        """
        name = f"{name} ({self.samples} samples of {self.seeds} seeds)"
        known = self.journal.get(name) if self.journal is not None else {}
        if known:
            return known
        found = measure()
        if self.journal is not None:
            self.journal.note(name, found)
        return found

    def bench(self, name: str) -> Bench:
        """A model with its requests and its judge. Each model is loaded once."""
        if name not in self._benches:
            model = tenuto.load(name, device=torch.device(self.device), dtype=torch.float32)
            make = TextBench if model.architecture.asks_for == "prompt" else PictureBench
            self._benches[name] = make(model, self.samples, range(self.seeds))
        return self._benches[name]

    def benches(self) -> list[Bench]:
        return [self.bench(name) for name in self.models]

    def writers(self) -> list[Bench]:
        """The benches of language models."""
        if found := [bench for bench in self.benches() if bench.writes]:
            return found
        raise UsageError(f"This experiment is for language models, and {', '.join(self.models)} draws.")
