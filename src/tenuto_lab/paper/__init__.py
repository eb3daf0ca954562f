"""The paper's experiments, each as one function from a lab to its result.

    from tenuto_lab.paper import EXPERIMENTS, Lab
    result = EXPERIMENTS["rankings"].run(Lab(models=("tiny-dit",), samples=20))

`tenuto lab experiment` runs them and writes the results with their provenance. It records every trial, so that an
interrupted run can continue where it stopped.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module

from tenuto.scheduling.units import Granularity
from tenuto_lab.paper.conditions import REFERENCE, Lab, Protocol
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, Figure, Panel, judged

DRAWING = ("tiny-dit", "tiny-uvit", "tiny-sdxl")


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    claim: str  # the paper's claim, in a sentence
    where: str  # in the paper; tables and figures as its source numbers them
    home: str  # module and function
    models: tuple[str, ...] = REFERENCE  # default models, from the reference set
    samples: int = 50  # for each seed
    text_samples: int = 4  # the same for a model that writes: small-llada has 46 different problems of a kind, or 64
    seeds: int = 10
    granularities: tuple[Granularity, ...] = ("block",)  # the paper's; both where it decides the outcome
    minutes: float = 1.0  # about how long it takes on an H200
    trials: Callable[[Lab], int] = lambda lab: 0  # about how many, of each model and granularity; 0: not known
    in_blocks: bool = False  # whether it writes text in blocks, which share the steps equally
    on_cpu: bool = False  # whether a CPU does it in minutes as well

    def run(self, lab: Lab) -> ExperimentResult:
        module, function = self.home.split(":")
        found: Callable[[Lab], ExperimentResult] = getattr(import_module(f"tenuto_lab.paper.{module}"), function)
        result = found(lab)
        return replace(result, rows=judged(result.rows))


BOTH: tuple[Granularity, ...] = ("block", "branch")


_ALL = (
    Experiment(
        "operating-points",
        "Operating points and untuned transfer",
        "τ = 1 and S_min = 0.1 T, the same on every model, compute 32 to 36 % of the unit-steps, are 2.8 to 3.0 "
        "times as fast, and lose 0.08 FID or 0.2 points.",
        "Tables 3 and 4",
        "operating:operating_points",
        granularities=BOTH,
        minutes=3,
        trials=lambda lab: 4,
        in_blocks=True,
    ),
    Experiment(
        "rankings",
        "Static rankings at a matched budget",
        "SCR/Frobenius is the best of eight rankings on every model.",
        "Table 5",
        "static_rankings:rankings",
        granularities=BOTH,
        minutes=15,
        trials=lambda lab: 9 + lab.orders,
        in_blocks=True,
    ),
    Experiment(
        "execution",
        "What each way of running contributes",
        "Skipping gives 1.9 times, a padded graph 2.7 and jagged graphs 3.0, for 10 to 22 % more memory.",
        "Tables 2 and 10",
        "execution:execution",
        samples=1,
        text_samples=1,
        seeds=1,
        minutes=3,
    ),
    Experiment(
        "language",
        "Language tasks",
        "At 35 % of the layer-steps the spectral schedule keeps retrieval and reasoning; depth and random orders do "
        "not.",
        "Table 6",
        "language_tasks:language",
        ("small-llada",),
        minutes=2,
        trials=lambda lab: 5 + lab.orders,
        in_blocks=True,
    ),
    Experiment(
        "horizons",
        "Short horizons",
        "The spectral order stays the best at every number of steps from 100 to 10.",
        "Table 7",
        "horizons:horizons",
        granularities=BOTH,
        minutes=30,
        trials=lambda lab: (5 + lab.orders) * (1 if lab.steps else 5),
    ),
    Experiment(
        "input-aware",
        "Static beside input-aware",
        "Choosing by activation drift is as good within uncertainty, and slower.",
        "Table 8",
        "drift_control:input_aware",
        minutes=8,
        trials=lambda lab: 6,
        in_blocks=True,
    ),
    Experiment(
        "oracle",
        "Oracle replay",
        "Knowing the outcome, 29 % of the layer-steps (930 of 3,200) keep the output within 0.5 %.",
        "Tables 6 and 8",
        "oracle:oracle",
        ("small-llada", "tiny-dit", "tiny-uvit"),  # the paper has LLaDA's only; a UNet's search takes hours
        samples=20,
        text_samples=20,
        seeds=1,
        granularities=("branch",),
        minutes=30,
        trials=lambda lab: 2 * lab.samples,
    ),
    Experiment(
        "comparisons",
        "Beside samplers and caches of others",
        "The spectral schedule keeps FID better than fewer steps, DeepCache, Δ-DiT and Block Caching, and composes "
        "with them.",
        "Tables 9 and 11",
        "comparisons:comparisons",
        DRAWING,
        minutes=10,
        trials=lambda lab: 25,
    ),
    Experiment(
        "freeze-error",
        "Does the score predict freeze sensitivity?",
        "Score and one-unit freeze error correlate at 0.66 to 0.76, and SCR keeps a positive coefficient when "
        "depth, type and norm are controlled for.",
        "Figure 3, Tables 12 and 18",
        "score_validity:freeze_error",
        samples=32,
        text_samples=32,
        seeds=1,
        granularities=("branch",),
        minutes=5,
        trials=lambda lab: 2,
    ),
    Experiment(
        "audit",
        "Audit of drift and amplification",
        "What the score leaves out hardly varies (CV 0.26 to 0.41), does not correlate with it, and changes little "
        "when it is put in.",
        "Table 22",
        "score_validity:audited",
        samples=128,
        text_samples=15,
        seeds=3,
        granularities=("branch",),
        minutes=15,
        trials=lambda lab: 3 + -(-lab.samples // 32),
        in_blocks=True,
    ),
    Experiment(
        "pareto",
        "Quality against work",
        "Each model has a region of low degradation up to τ = 1, and fails sharply behind it.",
        "Figure 4, Table 19",
        "operating:pareto",
        granularities=BOTH,
        minutes=5,
        trials=lambda lab: 7,
        in_blocks=True,
    ),
    Experiment(
        "maps",
        "Lifetime maps",
        "Lifetimes grow with depth, and τ = 1 leaves 32 to 36 % of the layer-steps.",
        "Figures 2 and 5, Table 17",
        "operating:maps",
        samples=1,
        text_samples=1,
        seeds=1,
        granularities=BOTH,
        on_cpu=True,
    ),
    Experiment(
        "failures",
        "Failures of aggressive schedules",
        "Fine texture goes first in pictures, carries go first in sums.",
        "Table 20",
        "failures:failures",
        samples=100,
        text_samples=46,
        seeds=1,
        trials=lambda lab: 1,
    ),
    Experiment(
        "freezing",
        "Freezing while training",
        "Fine-tuning with the 40 % of the layers with the least SCR frozen is nearly as good as full fine-tuning, "
        "and better than with random ones frozen.",
        "Table 21",
        "freezing:freezing",
        ("small-llada",),
        seeds=3,
        text_samples=1,
        minutes=3,
        trials=lambda lab: 4 * lab.seeds,
    ),
    Experiment(
        "bounds",
        "Lemma 2 and Theorem 1",
        "The perturbation analysis motivates the ranking: a branch's slope is bounded by its weights (Lemma 2), and "
        "the error of freezing by that slope, drift and amplification (Theorem 1).",
        "Section 3",
        "theory:bounds",
        ("small-llada", "tiny-dit", "tiny-uvit"),
        samples=8,
        text_samples=8,
        seeds=1,
        granularities=("branch",),
        minutes=5,
        trials=lambda lab: 1,
    ),
    Experiment(
        "quantisation",
        "Scores of quantised weights",
        "Scores should be recomputed after aggressive quantization.",
        "Limitations",
        "theory:quantisation",
        samples=1,
        text_samples=1,
        seeds=1,
        granularities=BOTH,
        on_cpu=True,
    ),
)
EXPERIMENTS = {one.name: one for one in _ALL}

__all__ = [
    "EXPERIMENTS",
    "REFERENCE",
    "ClaimRow",
    "Experiment",
    "ExperimentResult",
    "Figure",
    "Lab",
    "Panel",
    "Protocol",
]
