"""`tenuto lab schedule`: schedules by the policies that were measured and lost."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tenuto.cli.app import AsJson
from tenuto_lab.cli.app import app

Policy = Literal["anchors", "allocated"]
Ranking = Literal["spectral", "spectral within type", "random", "early", "late", "cheap"]
Predict = Literal["constant", "linear", "quadratic", "cubic"]
Keep = Literal["branch", "update"]
OPTIONS = {  # of each policy, besides steps and budget
    "anchors": ("every", "closing", "share", "ranking", "predict", "keep"),
    "allocated": ("ranking", "predict", "keep"),
}


@app.command(epilog="Example: tenuto lab schedule tiny-dit --steps 50 --policy anchors --share 0.3 -o schedule.json")
def schedule(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="A model as for `tenuto score`, or a score file.")],
    steps: Annotated[int, typer.Option(help="Steps of one generation.")],
    policy: Annotated[
        Policy,
        typer.Option(
            help="anchors refreshes some units twice as often; allocated gives each unit a period of its own."
        ),
    ],
    budget: Annotated[float | None, typer.Option(help="Share of the work to compute. Default: 0.25.")] = None,
    every: Annotated[int | None, typer.Option(min=1, help="anchors: refresh period, instead of a budget.")] = None,
    closing: Annotated[int | None, typer.Option(min=0, help="anchors: last steps that compute everything.")] = None,
    ranking: Annotated[Ranking | None, typer.Option(help="anchors and allocated: which units deserve more.")] = None,
    share: Annotated[
        float | None, typer.Option(help="anchors: share of the FLOPs that is refreshed twice as often.")
    ] = None,
    predict: Annotated[Predict | None, typer.Option(help="How kept values are predicted.")] = None,
    keep: Annotated[Keep | None, typer.Option(help="What is kept between steps.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the schedule here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a schedule by a policy that lost, for comparison. `tenuto schedule` makes those that won."""
    from tenuto.cli.schedule import checked_output, finish, opened
    from tenuto.cli.score import score_with_progress
    from tenuto.errors import UsageError
    from tenuto.models import Stored
    from tenuto.scheduling.making import check_request
    from tenuto_lab.candidates.allocation import allocated, anchors

    check_request(steps, budget)
    options: dict[str, Any] = {"every": every, "closing": closing, "ranking": ranking, "share": share}
    options |= {"predict": predict, "keep": keep}
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in OPTIONS[policy]:
            owners = " or ".join(other for other, names in OPTIONS.items() if name in names)
            raise UsageError(f"--{name} belongs to the policy {owners}, not to {policy}.")
    if every is not None and budget is not None:
        raise UsageError("Give the refresh period or a budget, not both: one follows from the other.")
    if budget is not None:
        given["budget"] = budget
    subject, read = opened(source)
    checked_output(output, read)
    scores = score_with_progress(subject) if isinstance(subject, Stored) else subject
    finish({"anchors": anchors, "allocated": allocated}[policy](scores, steps, **given), output, as_json)
