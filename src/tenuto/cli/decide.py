"""`tenuto score` and `tenuto schedule`: from weights to a decision."""

from pathlib import Path
from typing import Any

from tenuto import api
from tenuto.cli.console import out, print_json, progress, say
from tenuto.cli.generate import check_device
from tenuto.cli.show import print_schedule, print_scores
from tenuto.errors import CheckpointError
from tenuto.files import check_writable
from tenuto.models import Stored, open_model
from tenuto.schedules import to_json as schedule_to_json
from tenuto.scores import Scores, load_scores
from tenuto.scores import to_json as scores_to_json


def score_with_progress(stored: Stored, **options: Any) -> Scores:
    keys = {key for unit in stored.units for key in unit.tensors()}
    with progress(f"Scoring {stored.name}", len(keys)) as advance:
        return api.score(stored, progress=lambda key: advance(1), **options)


def score_command(model: str, output: Path | None, eta: float, device: str, as_json: bool) -> None:
    place, stored, journal = check_device(device), open_model(model), None
    if output is not None:
        check_writable(output, reads=[stored.path])
    if output is not None and (output.is_file() or not output.exists()):
        # A large checkpoint takes minutes: beside the file to be written, what is finished survives an interrupt.
        journal = api.journal_of(output.with_name(f"{output.name}.journal"), stored, eta)
    try:
        scores = score_with_progress(stored, eta=eta, device=place, journal=journal)
    except CheckpointError:
        if journal:
            journal.done()  # these weights will fail again
        raise
    if output is not None:
        scores.save(output)
    if journal:
        journal.done()
    if as_json:
        print_json(scores_to_json(scores))
    else:
        print_scores(scores)
    if output is not None:
        say(f"Wrote {output}")


def schedule_command(source: str, output: Path | None, as_json: bool, **options: Any) -> None:
    stored = None if _is_json(Path(source)) else open_model(source)
    if output is not None:
        check_writable(output, reads=[source if stored is None else stored.path])
    scores = load_scores(source) if stored is None else score_with_progress(stored)
    if options["policy"] == "noise" and stored is not None:
        options["levels"] = api.noise_levels(stored, options["steps"])
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
    family = api.family_of(scores)
    if warning := api.advice(schedule, text=family is not None and family.asks_for == "prompt"):
        say(warning)


def _is_json(path: Path) -> bool:
    """Whether a file begins as a score file does, and no checkpoint."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(1) == b"{"
