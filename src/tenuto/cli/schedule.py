"""`tenuto schedule`: decide which steps compute what, before anything runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenuto.cli.app import PERIODS, AsJson, app, period

if TYPE_CHECKING:
    from tenuto.models import Stored

Policy = Literal["refresh", "rewrite", "lifetimes"]
Predict = Literal["constant", "linear", "quadratic", "cubic"]
Keep = Literal["output", "branch", "update"]
Rows = Literal["none", "written", "block", "generated"]
Granularity = Literal["branch", "block"]
BY_HAND = "Instead of what the policy would choose"


@app.command(
    epilog="Example: tenuto schedule tiny-dit --steps 50 --speedup 3 -o schedule.json"
    " · tenuto schedule small-llada --steps 64 --blocks 4 --budget 0.5"
)
def schedule(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="A model, as for `tenuto score`, or a score file.")],
    steps: Annotated[int, typer.Option(help="Steps of one generation.")],
    budget: Annotated[float | None, typer.Option(help="Share of the work to compute. Default: 0.25.")] = None,
    speedup: Annotated[float | None, typer.Option(help="How many times as fast; instead of a budget.")] = None,
    evaluations: Annotated[
        int | None, typer.Option(help="How many steps evaluate the network; instead of a budget.")
    ] = None,
    blocks: Annotated[int | None, typer.Option(help="Text: number of blocks. Default: 1.")] = None,
    policy: Annotated[
        Policy | None,
        typer.Option(help="Default: refresh for pictures, rewrite for text. lifetimes is the paper's."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the schedule here.")] = None,
    as_json: AsJson = False,
    every: Annotated[
        Any,
        typer.Option(
            parser=period,
            metavar=PERIODS,
            help="Refresh period in steps; text: or early, careful, checked.",
            rich_help_panel=BY_HAND,
        ),
    ] = None,
    predict: Annotated[
        Predict | None, typer.Option(help="How kept values are predicted.", rich_help_panel=BY_HAND)
    ] = None,
    keep: Annotated[Keep | None, typer.Option(help="What is kept between steps.", rich_help_panel=BY_HAND)] = None,
    correction: Annotated[
        bool | None, typer.Option(help="Correct the prediction at a refresh.", rich_help_panel=BY_HAND)
    ] = None,
    rows: Annotated[
        Rows | None, typer.Option(help="Text: positions that every step computes.", rich_help_panel=BY_HAND)
    ] = None,
    held: Annotated[
        float | None, typer.Option(help="Text: share of the units that are ever held.", rich_help_panel=BY_HAND)
    ] = None,
    tau: Annotated[float | None, typer.Option(help="lifetimes: their scale τ.", rich_help_panel=BY_HAND)] = None,
    min_lifetime: Annotated[
        float | None, typer.Option(help="lifetimes: the least, as a share of the steps.", rich_help_panel=BY_HAND)
    ] = None,
    granularity: Annotated[
        Granularity | None,
        typer.Option(
            help="lifetimes: one for each branch, or one for each block as in the paper.", rich_help_panel=BY_HAND
        ),
    ] = None,
) -> None:
    """Choose the steps that evaluate the network, and show them. Only the policy lifetimes reads weights."""
    from tenuto import deciding
    from tenuto.models import Stored

    subject, read = opened(source)
    checked_output(output, read)
    if policy is not None and deciding.POLICIES[policy].reads_scores and isinstance(subject, Stored):
        subject = score_with_progress(subject)
    made = deciding.schedule(
        subject,
        steps,
        budget=budget,
        speedup=speedup,
        policy=policy,
        blocks=blocks,
        evaluations=evaluations,
        every=every,
        predict=predict,
        keep=keep,
        correction=correction,
        rows=rows,
        held=held,
        tau=tau,
        min_lifetime=min_lifetime,
        granularity=granularity,
    )
    family = deciding.family_of(deciding.subject_of(subject))
    text = family is not None and family.asks_for == "prompt"
    finish(made, output, as_json, deciding.advice(made, text))


def opened(source: str) -> tuple[Any, str | Path]:
    """What a schedule is made for, a score file or a stored model, and the path that it was read from."""
    from tenuto.laboratory import offered
    from tenuto.models import open_model

    if _is_json(Path(source)):
        return offered("load_scores")(source), source
    stored = open_model(source)
    return stored, stored.path


def score_with_progress(stored: "Stored", **options: Any) -> Any:
    """The scores of a checkpoint's units."""
    from tenuto.cli.console import progress
    from tenuto.laboratory import offered

    keys = {key for unit in stored.units for key in unit.tensors()}
    with progress(f"Scoring {stored.name}", len(keys)) as advance:
        return offered("score")(stored, progress=lambda key: advance(1), **options)


def checked_output(output: Path | None, read: str | Path) -> None:
    from tenuto.files import check_writable

    if output is not None:
        check_writable(output, reads=[read])


def finish(made: Any, output: Path | None, as_json: bool, warning: str | None = None) -> None:
    """Write and show a schedule."""
    from tenuto.cli.console import out, print_json, say
    from tenuto.cli.show import print_schedule
    from tenuto.scheduling.schedule import to_json

    if output is not None:
        made.save(output)
    if as_json:
        print_json(to_json(made))
    else:
        print_schedule(made)
    if output is not None:
        say(f"Wrote {output}")
    elif not as_json:
        out.print("[dim]Add -o schedule.json to keep it.[/]")
    if warning:
        say(warning)


def _is_json(path: Path) -> bool:
    """Whether a plain file begins as a score file does; a checkpoint does not."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(1) == b"{"
    except OSError:
        return False
