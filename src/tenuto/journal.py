"""Work that can be taken up again: finished pieces are appended to a file beside the result, and read back later.

A line a piece, so that an interrupt or a full disk costs the piece at hand and nothing before it.
"""

import json
from pathlib import Path
from typing import Any

from tenuto.errors import TenutoError


class Journal:
    """`name -> value` on disk, for one job; what another job wrote is ignored and overwritten."""

    def __init__(self, path: Path, job: dict[str, Any]) -> None:
        self.path = path
        self._finished: dict[str, Any] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            if lines and self._parsed(lines[0]) == {"job": job}:
                for line in lines[1:]:
                    if (entry := self._parsed(line)) is not None:
                        self._finished.update(entry)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8")
            self._write({"job": job})
            for name, value in self._finished.items():
                self._write({name: value})
        except OSError as error:
            raise TenutoError(f"Cannot write {path}: {error.strerror or error}.") from error

    @staticmethod
    def _parsed(line: str) -> Any:
        try:
            return json.loads(line)
        except json.JSONDecodeError:  # the line that was being written when the job ended
            return None

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def __contains__(self, name: str) -> bool:
        return name in self._finished

    def __getitem__(self, name: str) -> Any:
        return self._finished[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._finished[name] = value
        try:
            self._write({name: value})
        except OSError as error:
            raise TenutoError(f"Cannot write {self.path}: {error.strerror or error}.") from error

    def done(self) -> None:
        """The job is finished and its result safe elsewhere: nothing is left to take up."""
        self._file.close()
        self.path.unlink(missing_ok=True)
