"""Work that can be taken up again: finished pieces are appended to a file beside the result, and read back later.

A line a piece, so that an interrupt or a full disk costs the piece at hand and nothing before it.
"""

import json
from pathlib import Path
from typing import Any

from tenuto.errors import TenutoError


class Journal:
    """`name -> object` on disk, for one job; what another job wrote, or cannot be read, is not believed."""

    def __init__(self, path: Path, job: dict[str, Any]) -> None:
        self.path = path
        self._finished: dict[str, dict[str, Any]] = {}
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        lines = [_parsed(line) for line in text.splitlines()]
        goes_on = bool(lines) and lines[0] == {"job": job}
        for entry in lines[1:] if goes_on else []:
            self._finished.update({name: value for name, value in entry.items() if isinstance(value, dict)})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a" if goes_on else "w", encoding="utf-8")
        except OSError as error:
            raise TenutoError(f"Cannot write {path}: {error.strerror or error}.") from error
        self._write("\n" if goes_on and not text.endswith("\n") else "")
        if not goes_on:
            self._write(json.dumps({"job": job}) + "\n")

    def get(self, name: str) -> dict[str, Any]:
        """What was noted under a name, or nothing."""
        return self._finished.get(name, {})

    def note(self, name: str, value: dict[str, Any]) -> None:
        self._finished[name] = value
        self._write(json.dumps({name: value}) + "\n")

    def done(self) -> None:
        """The result is safe elsewhere, or the job cannot succeed: nothing is left to take up."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            raise TenutoError(f"Cannot write {self.path}: {error.strerror or error}.") from error


def _parsed(line: str) -> dict[str, Any]:
    """An entry, or nothing for the line that was being written when a job ended."""
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return entry if isinstance(entry, dict) else {}
