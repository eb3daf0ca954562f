"""`tenuto lab schedule`: schedules by other rankings, by rivals, and by the policies that were measured and lost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenuto.cli.app import AsJson
from tenuto_lab.cli.app import app

if TYPE_CHECKING:
    from tenuto.scheduling.schedule import Schedule

Policy = Literal[
    "anchors", "allocated", "ranked", "deep_cache", "delta_dit", "block_cache", "learning_to_cache", "pro_cache"
]
Ranking = Literal[
    "spectral", "spectral within type", "random", "early", "late", "cheap", "depth", "frobenius", "spectral_norm",
    "stable_rank", "frobenius_stable_rank", "scr", "score",
]  # fmt: skip
Predict = Literal["constant", "linear", "quadratic", "cubic"]
Keep = Literal["branch", "update"]
Granularity = Literal["branch", "block"]
OPTIONS = {  # of each policy, besides steps and budget
    "anchors": ("every", "closing", "share", "ranking", "predict", "keep"),
    "allocated": ("ranking", "predict", "keep"),
    "ranked": ("ranking", "orientation", "seed", "tau", "granularity", "predict", "keep"),
    "deep_cache": ("every", "depth", "lifetimes"),
    "delta_dit": ("every", "cached", "boundary"),
    "block_cache": ("samples",),
    "learning_to_cache": ("samples",),
    "pro_cache": ("samples",),
}
CALIBRATED = ("block_cache", "learning_to_cache", "pro_cache")


@app.command(
    epilog="Example: tenuto lab schedule tiny-dit --steps 100 --ranking scr --budget 0.34 --granularity block"
    " · tenuto lab schedule tiny-dit --steps 50 --policy anchors --share 0.3"
)
def schedule(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="A model as for `tenuto score`, or a score file.")],
    steps: Annotated[int, typer.Option(help="Steps of one generation.")],
    policy: Annotated[
        Policy,
        typer.Option(
            help="ranked gives the paper's lifetimes out in another order; deep_cache, delta_dit, block_cache, "
            "learning_to_cache and pro_cache are rivals; anchors refreshes some units twice as often; allocated gives "
            "each unit a period of its own."
        ),
    ] = "ranked",
    budget: Annotated[float | None, typer.Option(help="Share of the work to compute. Default: 0.25.")] = None,
    every: Annotated[int | None, typer.Option(min=1, help="Refresh period, in steps.")] = None,
    closing: Annotated[int | None, typer.Option(min=0, help="anchors: last steps that compute everything.")] = None,
    ranking: Annotated[
        Ranking | None,
        typer.Option(
            help="Which units deserve more. ranked: random, depth, frobenius, spectral_norm, stable_rank, "
            "frobenius_stable_rank, scr or score; anchors and allocated: the first six."
        ),
    ] = None,
    orientation: Annotated[
        int | None, typer.Option(min=-1, max=1, help="ranked: 1, a larger number lives longer; -1, shorter.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="ranked: which random order.")] = None,
    tau: Annotated[float | None, typer.Option(help="ranked: the scale τ, instead of a budget.")] = None,
    granularity: Annotated[Granularity | None, typer.Option(help="ranked: what has a lifetime of its own.")] = None,
    share: Annotated[
        float | None, typer.Option(help="anchors: share of the FLOPs that is refreshed twice as often.")
    ] = None,
    depth: Annotated[int | None, typer.Option(min=0, help="deep_cache: the skip branch that is still live.")] = None,
    ends: Annotated[
        float | None,
        typer.Option("--lifetimes", help="deep_cache: end units with the paper's lifetimes of this budget, too."),
    ] = None,
    cached: Annotated[int | None, typer.Option(min=0, help="delta_dit: how many blocks are held.")] = None,
    boundary: Annotated[float | None, typer.Option(help="delta_dit: where it changes sides, share of steps.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Rivals that are calibrated: on how many samples. Default: 8.")
    ] = None,
    predict: Annotated[Predict | None, typer.Option(help="How kept values are predicted.")] = None,
    keep: Annotated[Keep | None, typer.Option(help="What is kept between steps.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the schedule here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a schedule for comparison: another ranking, a rival, or a policy that lost. `tenuto schedule` makes ours."""
    from tenuto.cli.schedule import checked_output, finish, opened
    from tenuto.errors import UsageError
    from tenuto.scheduling.making import check_request

    check_request(steps, budget)
    options: dict[str, Any] = {"every": every, "closing": closing, "ranking": ranking, "share": share}
    options |= {"predict": predict, "keep": keep, "orientation": orientation, "seed": seed}
    options |= {"tau": tau, "granularity": granularity, "depth": depth, "cached": cached, "boundary": boundary}
    options |= {"samples": samples, "lifetimes": ends}
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in OPTIONS[policy]:
            owners = " or ".join(other for other, names in OPTIONS.items() if name in names)
            raise UsageError(f"--{name} belongs to the policy {owners}, not to {policy}.")
    if every is not None and budget is not None:
        raise UsageError("Give the refresh period or a budget, not both: one follows from the other.")
    subject, read = opened(source)
    checked_output(output, read)
    finish(_made(policy, source, subject, steps, budget, given), output, as_json)


def _made(
    policy: Policy, source: str, subject: Any, steps: int, budget: float | None, given: dict[str, Any]
) -> "Schedule":
    from tenuto.cli.schedule import score_with_progress
    from tenuto.errors import UsageError
    from tenuto.models import Stored
    from tenuto_lab.candidates.allocation import allocated, anchors

    if policy in ("deep_cache", "delta_dit", *CALIBRATED):
        return _rival(policy, source, steps, budget, given)
    if budget is not None:
        given["budget"] = budget
    scores = score_with_progress(subject) if isinstance(subject, Stored) else subject
    if policy == "ranked":
        return _ranked(scores, steps, given)
    if given.get("ranking") not in (None, "spectral", "spectral within type", "random", "early", "late", "cheap"):
        raise UsageError(f"--ranking {given['ranking']} is for the policy ranked.")
    return {"anchors": anchors, "allocated": allocated}[policy](scores, steps, **given)


def _ranked(scores: Any, steps: int, given: dict[str, Any]) -> "Schedule":
    from tenuto.errors import UsageError
    from tenuto_lab.candidates.ranked_lifetimes import STATISTICS, ranked_lifetimes
    from tenuto_lab.scoring.scores import at_granularity

    ranking = given.pop("ranking", "score")
    if ranking not in STATISTICS:
        raise UsageError(f"The policy ranked orders by one of {', '.join(STATISTICS)}, not by {ranking!r}.")
    if given.get("orientation") == 0:
        raise UsageError("A ranking is oriented by 1 or -1.")
    scores = at_granularity(scores, given.pop("granularity", scores.granularity))
    if "tau" not in given:
        given.setdefault("budget", 0.25)
    return ranked_lifetimes(scores, steps, ranking, **given)


def _rival(policy: Policy, source: str, steps: int, budget: float | None, given: dict[str, Any]) -> "Schedule":
    from tenuto import load
    from tenuto.cli.console import say
    from tenuto.errors import UsageError
    from tenuto_lab.paper import Lab
    from tenuto_lab.rivals import block_cache_at, delta_dit, learning_to_cache, pro_cache

    if policy not in CALIBRATED and budget is not None:
        raise UsageError(f"{policy} is chosen by its period, not by a budget.")
    if policy in CALIBRATED:
        count = given.get("samples", 8)
        bench = Lab((source,), count, 1).bench(source)
        say(f"Calibrating on {count} samples")
        if policy == "block_cache":
            return block_cache_at(bench.model, steps, budget or 0.25, bench.sample(steps))
        make, usual = (learning_to_cache, 0.7) if policy == "learning_to_cache" else (pro_cache, 0.25)
        return make(bench.model, steps, budget or usual, bench.sample(steps))
    model, every = load(source), given.pop("every", 3)
    if policy == "deep_cache":
        return _deep_cache(model, steps, every, given)
    if not {"cached", "boundary"} <= set(given):
        raise UsageError("Δ-DiT chooses its numbers for each model: name --cached and --boundary.")
    return delta_dit(model, steps, every=every, **given)


def _deep_cache(model: Any, steps: int, every: int, given: dict[str, Any]) -> "Schedule":
    """DeepCache. Without long skips, the outer blocks are live; with lifetimes, units end with them."""
    from tenuto import score
    from tenuto.errors import UsageError
    from tenuto_lab.candidates.composition import both
    from tenuto_lab.rivals import deep_cache_schedule, has_long_skips, outer_live_schedule
    from tenuto_lab.units.lifetimes import lifetimes

    ends = given.pop("lifetimes", None)
    if has_long_skips(model):
        made = deep_cache_schedule(model, steps, every, **given)
    elif given:
        raise UsageError(f"{model.name} has no long skips, so DeepCache there has no --depth.")
    else:
        made = outer_live_schedule(model, steps, every)
    return made if ends is None else both(lifetimes(score(model), steps, budget=ends), made)
