"""The journals of runs that were made beside each other, as one journal.

Every process writes what it measured to a file of its own. Their union is what one process would have written: the
name of an entry says the model, the steps, the samples and the granularity.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tenuto.errors import TenutoError, UsageError
from tenuto.files import check_regular
from tenuto_lab.journal import Journal, parsed

FILE = ".trials.jsonl"
RUN = "run: "  # entries that say which command added to a journal, and when
DONE = "done: "  # entries that say which result files are complete


def joined(notes: Path, others: Sequence[Path], job: Mapping[str, Any] | None) -> tuple[Journal, dict[str, Any]]:
    """The journal `notes` with all entries of the others, and, without a job, the job that they were made for.

    job  what this run is for. The others must be made for the same. Without one, theirs is taken: nothing is measured
    """
    files = [file for path in others for file in (sorted(path.rglob(FILE)) if path.is_dir() else [path])]
    read = [(path, *read_trials(path)) for path in files]
    made: dict[str, Any] = {}
    if job is None:
        if not files:
            raise UsageError("To measure nothing, and only put together what was measured, name it with --trials.")
        job = read[0][1]
        runs = {name.removeprefix(RUN): value for *_, entries in read for name, value in entries.items() if RUN in name}
        made = {**job, "runs": {_timeless(run): value.get("date", "") for run, value in runs.items()}}
    journal = Journal(notes, dict(job))
    for path, known, entries in read:
        if known != dict(job):
            raise TenutoError(f"{path} was made for {known}, not for {dict(job)}: these trials cannot be compared.")
        for name, value in entries.items():
            if not journal.get(name) and not name.startswith((DONE, RUN)):
                journal.note(name, value)
    return journal, made


def _timeless(command: str) -> str:
    """A command without the minutes that it was given: a resumed run may have been given others."""
    return re.sub(r" --minutes [0-9.]+", "", command)


def read_trials(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The job and the entries of a journal. The file is not changed."""
    check_regular(path, "trials")
    try:
        lines = [parsed(line) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError as error:
        raise TenutoError(f"Cannot read the trials {path}: {error.strerror or error}.") from error
    job = lines[0].get("job") if lines else None
    if not isinstance(job, dict):
        raise TenutoError(f"{path} holds no trials: its first line names no job.")
    return job, {name: value for line in lines[1:] for name, value in line.items() if isinstance(value, dict)}
