"""Work that many processes share: a range of indices in fixed parts. Each part is computed once and written whole.

    job = Job(Path("out/manifest.json"), Path("out/parts"), settings, count=50_000, batch=32)
    job.complete(lambda indices: bytes_of(indices), lambda parts: collect(parts), Worker.from_environment())

The processes share only a directory, on one host or on many: there is no process group and no coordinator. Neither the
parts nor their bytes depend on the number of processes. A process locks the part that it computes. The system releases
the lock when the process ends, in any way. So only one process computes a part at a time, and after a crash the same
command continues with the missing parts.

A part names its job and has a checksum. If a part is damaged or belongs to another job, a warning names the part, and
the part is computed again. The last process to finish collects the parts; the others find the job finished.
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tenuto.errors import TenutoError, UsageError
from tenuto.files import check_not_special, locked, parse_json, read_json, replacing, write_json

SETTINGS = "settings"  # the field of the record that describes the job
HEADER = b"tenuto part "  # begins the first line of a part; the content follows that line


@dataclass(frozen=True)
class Worker:
    """One of the processes, as torchrun and accelerate number them."""

    rank: int = 0
    world: int = 1
    local: int = 0  # number among the processes of its host

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise UsageError(f"RANK {self.rank} is none of the {self.world} process(es) that WORLD_SIZE names.")

    @classmethod
    def from_environment(cls) -> "Worker":
        """From RANK, WORLD_SIZE and LOCAL_RANK; without them, a single process."""
        names = {"rank": ("RANK", 0), "world": ("WORLD_SIZE", 1), "local": ("LOCAL_RANK", 0)}
        try:
            return cls(**{field: int(os.environ.get(name, default)) for field, (name, default) in names.items()})
        except ValueError as error:
            raise UsageError(f"RANK, WORLD_SIZE and LOCAL_RANK should be whole numbers: {error}.") from error

    def device(self, wanted: str) -> str:
        """The device of this process. Each process of a host gets its own GPU."""
        return f"cuda:{self.local}" if wanted == "cuda" and self.world > 1 else wanted


class DamagedPart(TenutoError):
    """The file of a part is not the file that this job wrote."""


@dataclass(frozen=True)
class StoredPart:
    """The file of a part: a line that describes it, and then its content."""

    path: Path
    job: str  # the identity of the part's job
    indices: range

    def write(self, content: bytes) -> None:
        with replacing(self.path) as temporary:
            temporary.write_bytes(self._header(content) + content)

    def read(self) -> bytes:
        """The content. Raises DamagedPart if the file is not whole."""
        try:
            line, _, content = self.path.read_bytes().partition(b"\n")
        except OSError as error:
            raise TenutoError(f"Cannot read {self.path}: {error.strerror or error}.") from error
        if line + b"\n" != self._header(content):
            raise DamagedPart(self._problem(line) or f"{self.path} is damaged: its checksum does not fit.")
        return content

    def problem(self) -> str | None:
        """What is wrong with the file, judged by its first line and its length; None if nothing is wrong."""
        check_not_special(self.path)
        try:
            with self.path.open("rb") as file:
                line = file.readline(1000)
            return self._problem(line.rstrip(b"\n")) or self._too_short(line)
        except FileNotFoundError:
            return f"{self.path} is not there."
        except OSError as error:
            raise TenutoError(f"Cannot read {self.path}: {error.strerror or error}.") from error

    def _header(self, content: bytes) -> bytes:
        told = {"job": self.job, "indices": [self.indices.start, self.indices.stop], "bytes": len(content)}
        return HEADER + json.dumps({**told, "sha256": hashlib.sha256(content).hexdigest()}).encode() + b"\n"

    def _problem(self, line: bytes) -> str | None:
        if not line:
            return f"{self.path} is empty."
        told = _told_by(line)
        if told is None:
            return f"{self.path} is not a part of a job."
        if told.get("job") != self.job:
            return f"{self.path} belongs to another job."
        if told.get("indices") != [self.indices.start, self.indices.stop]:
            return f"{self.path} is another part of this job."
        return None

    def _too_short(self, line: bytes) -> str | None:
        wanted, found = (_told_by(line) or {}).get("bytes"), self.path.stat().st_size - len(line)
        return None if wanted == found else f"{self.path} is damaged: it holds {found} bytes instead of {wanted}."


def _told_by(line: bytes) -> dict[str, Any] | None:
    """The fields in the first line of a part; None if the line is not a part's first line."""
    try:
        told = parse_json(line.removeprefix(HEADER)) if line.startswith(HEADER) else None
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


class Job:
    """`count` indices in parts of `batch`. Finished when `record` (it describes the job) and `results` exist."""

    def __init__(
        self,
        record: Path,
        parts: Path,
        settings: Mapping[str, Any],
        count: int,
        batch: int,
        results: Sequence[Path] = (),
    ) -> None:
        if count < 1 or batch < 1:
            raise UsageError(f"A job is of at least one sample, in parts of at least one: not {count} in {batch}s.")
        self.record, self.directory, self.results = record, parts, tuple(results)
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))  # as JSON will return them
        self.parts = [range(start, min(start + batch, count)) for start in range(0, count, batch)]
        self._check_same(self._told())
        if self.record.exists() and (lost := [path for path in self.results if not path.exists()]):
            _notice(f"{lost[0]} was lost, and {self.record} says that it was made: it is made again.")

    @cached_property
    def identity(self) -> str:
        """Two jobs have the same identity if all their settings and parts are the same."""
        told = [self.settings, [[part.start, part.stop] for part in self.parts]]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    @property
    def finished(self) -> bool:
        return all(path.exists() for path in (self.record, *self.results))

    def missing(self) -> list[range]:
        """The parts that do not exist yet, are damaged, or belong to another job."""
        return [part for part in self.parts if self.stored(part).problem()]

    def path(self, part: range) -> Path:
        return self.directory / f"{part.start:08d}-{part.stop:08d}"

    def stored(self, part: range) -> StoredPart:
        return StoredPart(self.path(part), self.identity, part)

    def complete(
        self,
        work: Callable[[range], bytes],
        collect: Callable[[Sequence[StoredPart]], None],
        worker: Worker,
        told: Callable[[range], object] = lambda part: None,
        afterwards: Callable[[], None] = lambda: None,
    ) -> bool:
        """Compute the parts that no other process computes; collect if all parts exist. Returns whether it is finished.

        afterwards  called when the job is finished, by one process at a time
        """
        self.run(work, worker, told)
        while True:
            try:
                return self.finish(collect, afterwards)
            except DamagedPart as damaged:  # damage that only reading the whole part shows
                _notice(f"{damaged} It is made again.")
                self.run(work, worker)

    def run(
        self, work: Callable[[range], bytes], worker: Worker, told: Callable[[range], object] = lambda p: None
    ) -> int:
        """Compute the parts that no process has computed or is computing, its own share first. Returns their number."""
        own = self.parts[worker.rank :: worker.world]
        mine, done = set(own), 0
        for part in own + [part for part in self.parts if part not in mine]:
            done += self._compute(part, work)
            told(part)
        return done

    def finish(
        self, collect: Callable[[Sequence[StoredPart]], None], afterwards: Callable[[], None] = lambda: None
    ) -> bool:
        """If all parts exist, collect them once and remove them. Returns whether the job is finished.

        collect  writes the results first and the record last. Damaged parts are removed, and DamagedPart is raised.
        """
        with locked(self.directory / "collecting.lock", wait=True):
            if not self.finished:
                if self.missing():
                    return False
                self._collect(collect)
            afterwards()
        shutil.rmtree(self.directory, ignore_errors=True)
        return True

    def _collect(self, collect: Callable[[Sequence[StoredPart]], None]) -> None:
        parts = [self.stored(part) for part in self.parts]
        try:
            collect(parts)
        except DamagedPart:
            for part in parts:
                try:
                    part.read()
                except DamagedPart:
                    part.path.unlink(missing_ok=True)
            raise

    def _compute(self, part: range, work: Callable[[range], bytes]) -> bool:
        stored = self.stored(part)
        if self.finished or not stored.problem():
            return False
        path = stored.path
        with locked(path.with_name(f"{path.name}.lock"), wait=False) as held:
            # Parts are removed only after the job is finished, so `finished` is checked last.
            if not held or not (problem := stored.problem()) or self.finished:
                return False
            if path.exists():
                _notice(f"{problem} It is made again.")
            stored.write(work(part))
        return True

    def _told(self) -> dict[str, Any]:
        """The settings of the job in this place; if there is none, our settings."""
        if not self.record.exists():
            try:
                return self._begun()
            except TenutoError:
                if not self.finished:  # if finished, another process has removed the parts meanwhile
                    raise
        told = read_json(self.record, "record of a job").get(SETTINGS)
        if not isinstance(told, dict):
            raise TenutoError(
                f"{self.record} is no record of a job: it has no {SETTINGS!r}. Remove it, or take another place."
            )
        return told

    def _begun(self) -> dict[str, Any]:
        description = self.directory / "job.json"
        with locked(self.directory / "beginning.lock", wait=True):
            if description.exists():
                try:
                    told = read_json(description, "description of a job").get(SETTINGS)
                except TenutoError as error:
                    self._check_ours(str(error))
                else:
                    if isinstance(told, dict):
                        return told
                    self._check_ours(f"{description} is no description of a job: it has no {SETTINGS!r}.")
            write_json(description, {SETTINGS: self.settings})
            return self.settings

    def _check_ours(self, problem: str) -> None:
        """Raise an error if parts of another job lie beside a damaged description; else it will be written again."""
        for path in sorted(self.directory.glob("*-*")):
            if path.suffix != ".lock" and path.is_file():
                with path.open("rb") as file:
                    told = _told_by(file.readline(1000))
                if told is not None and told.get("job") != self.identity:
                    raise TenutoError(f"{problem} {path} belongs to another job: take another place.")
        _notice(f"{problem} It is written again.")

    def _check_same(self, told: Mapping[str, Any]) -> None:
        names = [name for name in {**told, **self.settings} if told.get(name) != self.settings.get(name)]
        if names:
            name = names[0]
            others = f" (and {', '.join(names[1:])})" if names[1:] else ""
            raise TenutoError(
                f"{self.record.parent} holds another job: {name} is {_short(told.get(name))} there and "
                f"{_short(self.settings.get(name))} here{others}. Take another place, or the settings of that job."
            )


def _notice(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=3)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
