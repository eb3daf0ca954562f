"""Work that can be resumed: finished pieces are appended to a file beside the result, and read back later.

Each piece is one line, so that an interrupt or a full disk loses only the current piece.
"""

import json
from pathlib import Path
from typing import Any

from tenuto.errors import TenutoError
from tenuto.files import check_not_special


class Journal:
    """`name -> object` on disk, for one job; entries of another job and unreadable entries are ignored."""

    def __init__(self, path: Path, job: dict[str, Any]) -> None:
        self.path = path
        self._finished: dict[str, dict[str, Any]] = {}
        check_not_special(path)
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        lines = [parsed(line) for line in text.splitlines()]
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
        """The entry of a name; empty if there is none."""
        return self._finished.get(name, {})

    def note(self, name: str, value: dict[str, Any]) -> None:
        self._finished[name] = value
        self._write(json.dumps({name: value}) + "\n")

    def done(self) -> None:
        """Delete the journal, because the result is saved elsewhere or the job cannot succeed."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            raise TenutoError(f"Cannot write {self.path}: {error.strerror or error}.") from error


def parsed(line: str) -> dict[str, Any]:
    """The entry in a line; empty if the line is incomplete because the job was interrupted."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}
