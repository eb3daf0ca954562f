"""Work that many processes share: a range of indices in fixed parts, each computed once and written whole.

    job = Job(Path("out/manifest.json"), Path("out/parts"), settings, count=50_000, batch=32)
    job.run(lambda indices: bytes_of(indices), Worker.from_environment())
    job.finish(lambda paths: collect(paths))        # the last one to get here collects; the others find it done

A directory is all that processes share, on one host or on many: there is no process group and nobody in charge. The
parts do not depend on how many processes there are, so neither do their bytes. A process that works on a part holds a
lock on it, which the system takes back however the process ends; so a part is computed by one process at a time, and
after a crash the same command goes on with the parts that are not there.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tenuto.errors import TenutoError, UsageError
from tenuto.files import read_json, replacing, write_json

SETTINGS = "settings"  # the field of the record that says what the job was


@dataclass(frozen=True)
class Worker:
    """One of the processes, as torchrun and accelerate number them."""

    rank: int = 0
    world: int = 1
    local: int = 0  # among those of its host

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise UsageError(f"RANK {self.rank} is none of the {self.world} process(es) that WORLD_SIZE names.")

    @classmethod
    def from_environment(cls) -> "Worker":
        """By RANK, WORLD_SIZE and LOCAL_RANK; without them, the only one."""
        names = {"rank": ("RANK", 0), "world": ("WORLD_SIZE", 1), "local": ("LOCAL_RANK", 0)}
        try:
            return cls(**{field: int(os.environ.get(name, default)) for field, (name, default) in names.items()})
        except ValueError as error:
            raise UsageError(f"RANK, WORLD_SIZE and LOCAL_RANK should be whole numbers: {error}.") from error

    def device(self, wanted: str) -> str:
        """The device of this process: each process of a host takes another one."""
        return f"cuda:{self.local}" if wanted == "cuda" and self.world > 1 else wanted


class Job:
    """`count` indices in parts of `batch`; finished when `record` is there, which says what the job was."""

    def __init__(self, record: Path, parts: Path, settings: Mapping[str, Any], count: int, batch: int) -> None:
        if count < 1 or batch < 1:
            raise UsageError(f"A job is of at least one sample, in parts of at least one: not {count} in {batch}s.")
        self.record, self.directory = record, parts
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))  # as they will be read back
        self.parts = [range(start, min(start + batch, count)) for start in range(0, count, batch)]
        self._check_same(self._told())

    @property
    def finished(self) -> bool:
        return self.record.exists()

    def missing(self) -> list[range]:
        """The parts that are not there yet."""
        return [part for part in self.parts if not self.path(part).exists()]

    def path(self, part: range) -> Path:
        return self.directory / f"{part.start:08d}-{part.stop:08d}"

    def run(
        self, work: Callable[[range], bytes], worker: Worker, told: Callable[[range], object] = lambda p: None
    ) -> int:
        """Compute the parts that no process has computed or is computing, the own share first. Returns how many."""
        own = self.parts[worker.rank :: worker.world]
        mine, done = set(own), 0
        for part in own + [part for part in self.parts if part not in mine]:
            done += self._compute(part, work)
            told(part)
        return done

    def finish(self, collect: Callable[[Sequence[Path]], None]) -> bool:
        """If all parts exist, collect them once, write `record` last, and remove the parts. Returns whether it did."""
        with _lock(self.directory / "collecting.lock", wait=True):
            if not self.finished:
                if self.missing():
                    return False
                collect([self.path(part) for part in self.parts])
        shutil.rmtree(self.directory, ignore_errors=True)
        return True

    def _compute(self, part: range, work: Callable[[range], bytes]) -> bool:
        path = self.path(part)
        if path.exists() or self.finished:
            return False
        with _lock(path.with_name(f"{path.name}.lock"), wait=False) as held:
            # A part vanishes only after the job is finished, so that is asked last.
            if not held or path.exists() or self.finished:
                return False
            made = work(part)
            with replacing(path) as temporary:
                temporary.write_bytes(made)
        return True

    def _told(self) -> dict[str, Any]:
        """The settings of the job that is here; ours, if none is."""
        if not self.finished:
            try:
                return self._begun()
            except TenutoError:
                if not self.finished:  # then somebody cleared the parts away in between
                    raise
        told = read_json(self.record, "record of a job").get(SETTINGS)
        return told if isinstance(told, dict) else {}

    def _begun(self) -> dict[str, Any]:
        description = self.directory / "job.json"
        with _lock(self.directory / "beginning.lock", wait=True):
            if not description.exists():
                write_json(description, {SETTINGS: self.settings})
            told: dict[str, Any] = read_json(description, "description of a job")[SETTINGS]
            return told

    def _check_same(self, told: Mapping[str, Any]) -> None:
        names = [name for name in {**told, **self.settings} if told.get(name) != self.settings.get(name)]
        if names:
            name = names[0]
            others = f" (and {', '.join(names[1:])})" if names[1:] else ""
            raise TenutoError(
                f"{self.record.parent} holds another job: {name} is {_short(told.get(name))} there and "
                f"{_short(self.settings.get(name))} here{others}. Take another place, or the settings of that job."
            )


@contextmanager
def _lock(path: Path, wait: bool) -> Iterator[bool]:
    """Whether the lock is ours. The system gives it back when the process ends, in whatever way."""
    import fcntl

    with _opened(path) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
        except BlockingIOError:
            held = False
        except OSError as error:
            raise TenutoError(f"Cannot lock {path}: {error.strerror or error}.") from error
        yield held


def _opened(path: Path) -> TextIO:
    """Another process may be removing the directory; then it is made again."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("a", encoding="utf-8")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise TenutoError(f"Cannot write {path}: {error.strerror or error}.") from error


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
