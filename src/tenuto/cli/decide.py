"""`tenuto score` and `tenuto schedule`: from weights to a decision."""

from pathlib import Path
from typing import Any

from tenuto import api
from tenuto.cli.console import out, print_json, progress, say
from tenuto.cli.generate import check_device
from tenuto.cli.show import print_schedule, print_scores
from tenuto.errors import TenutoError
from tenuto.files import check_writable
from tenuto.models import open_model
from tenuto.schedules import to_json as schedule_to_json
from tenuto.scores import Scores, load_scores
from tenuto.scores import to_json as scores_to_json


def score_with_progress(model: str, **options: Any) -> Scores:
    keys = {key for unit in open_model(model).units for key in unit.tensors()}
    with progress(f"Scoring {model}", len(keys)) as advance:
        return api.score(model, progress=lambda key: advance(1), **options)


def score_command(model: str, output: Path | None, eta: float, device: str, as_json: bool) -> None:
    place, journal = check_device(device), None
    if output is not None:
        check_writable(output)
        # A large checkpoint takes minutes: beside the file to be written, what is finished survives an interrupt.
        journal = api.journal_of(output.with_name(f"{output.name}.journal"), open_model(model), eta)
    try:
        scores = score_with_progress(model, eta=eta, device=place, journal=journal)
        if output is not None:
            scores.save(output)
    except TenutoError:
        if journal:
            journal.done()  # trying again would fail again
        raise
    if journal:
        journal.done()
    if as_json:
        print_json(scores_to_json(scores))
    else:
        print_scores(scores)
    if output is not None:
        say(f"Wrote {output}")


def schedule_command(source: str, output: Path | None, as_json: bool, **options: Any) -> None:
    is_scores = Path(source).is_file() and Path(source).read_bytes()[:1] == b"{"  # no checkpoint begins so
    scores = load_scores(Path(source)) if is_scores else score_with_progress(source)
    schedule = api.schedule(scores, **options)
    if output is not None:
        schedule.save(output)
    if as_json:
        print_json(schedule_to_json(schedule))
    else:
        print_schedule(schedule)
    if output is not None:
        say(f"Wrote {output}")
    elif not as_json:
        out.print("[dim]Add -o schedule.json to keep it.[/]")
