"""Cases to measure: a model, its requests, and the judge of the results."""

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from tenuto.errors import UsageError
from tenuto.models import Model, find, is_pipeline
from tenuto.sampling.pictures import vae_of
from tenuto_lab.frontier.drawing import DrawingCase, measure_pictures
from tenuto_lab.frontier.measurements import Frontier, Save
from tenuto_lab.frontier.points import BUDGETS
from tenuto_lab.frontier.writing import BUDGETS as TEXT_BUDGETS
from tenuto_lab.frontier.writing import CONTINUED, WritingCase, measure_texts
from tenuto_lab.judging.judges import Judge, Problem, answer_lengths, picture_judge, problems, text_judge
from tenuto_lab.rivals import NAMES

CAPTIONS = ("airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")  # as the judge's classes
LENGTH = 128  # tokens of a continuation; by default, two tokens are written at a step
ANSWER = 16  # tokens of an answer
Case = DrawingCase | WritingCase


def case_of(
    model: Model,
    steps: int,
    *,
    samples: int,
    seeds: int = 3,
    batch: int = 64,
    budgets: Sequence[float] | None = None,
    converged: int = 0,
    rivals: bool = True,
    rankings: bool = True,
    ours_only: bool = False,
    block_length: int = 32,
    named: Sequence[str] = (),
    vae: Path | None = None,
    captions: Sequence[str] = (),
    posed: dict[str, list[Problem]] | None = None,
    answer_length: int | None = None,
    length: int = LENGTH,
    judge: Judge | None = None,
) -> Case:
    """The case of a model at one number of steps.

    samples    number of pictures, or of problems of each kind, for each seed
    converged  how many pictures of each seed are also drawn in 250, 500 and 1,000 steps
    named      rivals that draw pictures, by name (tenuto_lab.rivals.NAMES), each at its best setting with hindsight
    vae        decodes latents; by default the one beside the model
    captions   to draw, if the model is a whole pipeline
    posed      problems by task, in the model's tokens; by default those beside the model. How many tokens an answer
               gets, `answer_length`, is by default what their file says, or 16
    judge      of pictures; by default the shipped one that knows this kind of picture
    """
    if samples < 1 or seeds < 1:
        raise UsageError("At least one sample of one seed must be made.")
    if unknown := [name for name in named if name not in NAMES]:
        raise UsageError(f"There is no rival {unknown[0]!r}; there are {', '.join(NAMES)}.")
    if model.architecture.asks_for == "prompt":
        if named:
            raise UsageError(f"{model.name} writes text, and {named[0]} draws pictures.")
        if converged:
            raise UsageError("A text has no converged output: with more steps than tokens there is nothing to write.")
        own = posed is None  # whether the problems lie beside the model
        posed = problems(find(model.name)) if posed is None else posed
        case = WritingCase(
            model,
            steps,
            posed,
            # The judge of prose reads the tokens of the model that it was trained for (training.train_causal).
            text_judge(model.device) if own and CONTINUED in posed else None,
            length,
            min(block_length, length),
            answer_length or ANSWER,
            count=samples,
            seeds=range(seeds),
            budgets=budgets or TEXT_BUDGETS,
            rivals=rivals,
            rankings=rankings,
        )
        if own and answer_length is None:
            lengths = answer_lengths(find(model.name))
            case.answer_length = max((lengths.get(kind, ANSWER) for kind in case.answered.values()), default=ANSWER)
        return case
    known = judge is None  # whether the judge knows the classes
    judge = judge or picture_judge(model, model.device)
    labels, wanted = asked_for(model, samples)
    if model.path is not None and is_pipeline(model.path):
        if not captions:
            raise UsageError(f"{model.name} is a pipeline: name a file of captions, one a line, with --captions.")
        judge, batch = None if known else judge, min(batch, 8)
    if captions:
        wanted = list(islice(cycle(captions), samples))
    return DrawingCase(
        model,
        steps,
        wanted,
        range(seeds),
        min(batch, samples),
        judge,
        labels if known and judge is not None else None,
        min(converged, samples),
        budgets or BUDGETS,
        rivals,
        rankings,
        ours_only,
        named,
        vae_of(model, vae),
    )


def asked_for(model: Model, samples: int) -> tuple[list[int], list[Any]]:
    """The classes to draw, in rotation, and the requests for them (classes or captions)."""
    by_class = model.architecture.asks_for == "class"
    names = model.labels or CAPTIONS  # what captions may name
    labels = list(islice(cycle(range(model.config.classes if by_class else len(names))), samples))
    return labels, list(labels) if by_class else [f"a photo of a {names[i]}" for i in labels]


def measure(
    case: Case, say: Callable[[str], object] = lambda text: None, save: Save = lambda frontier: None
) -> Frontier:
    """Measure a case. After each point, `say` receives a line about the point, and `save` the frontier so far."""
    return measure_pictures(case, say, save) if isinstance(case, DrawingCase) else measure_texts(case, say, save)
