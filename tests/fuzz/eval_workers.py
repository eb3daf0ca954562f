"""`eval samples` by two, three and four processes, with one killed at a random moment or the disk filled in the middle.

    python -m tests.fuzz.eval_workers --seconds 60 --seed 0

After every fault the same command is run again. The promise: the set has the same bytes as that of one process, no part
is computed twice but those that a fault cut short, nothing else is left behind, and a full disk is told in a sentence.
"""

import argparse
import ctypes
import errno
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import torch

import tenuto
import tenuto_lab.full_size.samples as samples
from tenuto.cli import main as tenuto_main
from tenuto.files import write_json
from tenuto.provenance import provenance
from tests.conftest import random_dit, write_checkpoint

SAMPLES, BATCH, SEED = 13, 2, 5  # seven parts, the last one short
WORLDS = (2, 3, 4)
PLAIN = ["manifest.json", "samples.npz"]
Fault = Literal["kill", "disk"]


@dataclass
class Ended:
    """How the processes of one round ended."""

    statuses: list[int]
    said: list[str]

    @property
    def failed(self) -> int:
        return sum(status != 0 for status in self.statuses)


@dataclass
class Place:
    """A model and the set that one process makes of it."""

    folder: Path
    wanted: bytes = b""
    seconds: dict[int, float] = field(default_factory=dict)  # that so many processes need without a fault

    @classmethod
    def prepared(cls, folder: Path) -> "Place":
        write_checkpoint(folder / "model", random_dit())
        tenuto.schedule(folder / "model", steps=8, evaluations=4).save(folder / "schedule.json")
        place = cls(folder)
        # In this process, so that whatever is imported late is there before processes are forked.
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), suppress(SystemExit):
            sys.argv = ["tenuto", *place._arguments(folder / "alone")]
            tenuto_main()
        gc.freeze()
        place.wanted = (folder / "alone" / "samples.npz").read_bytes()
        for world in WORLDS:
            begun = time.monotonic()
            clean = place.run(folder / f"clean{world}", world)
            place.seconds[world] = time.monotonic() - begun
            place.check(folder / f"clean{world}", [clean])
        return place

    def run(
        self, output: Path, world: int, *, kill: tuple[int, float] | None = None, full_at: Sequence[int] = ()
    ) -> Ended:
        """Start so many processes and wait for them.

        kill     the rank of a process that is killed, and after how many seconds
        full_at  for each process, the write at which its disk is full; 0: never
        """
        children = []
        for rank in range(world):
            said = self.folder / f"said{rank}"
            fails = full_at[rank] if full_at else 0
            children.append((_started(self._arguments(output), rank, world, said, self._log(output), fails), said))
        if kill is not None:
            time.sleep(kill[1])
            os.kill(children[kill[0]][0], signal.SIGKILL)  # it is not waited for yet, so the number is still its own
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child, _ in children]
        return Ended(statuses, [path.read_text(errors="replace") for _, path in children])

    def check(self, output: Path, rounds: Sequence[Ended]) -> None:
        """Raise if the promise is broken."""
        told = json.dumps([[one.statuses, one.said] for one in rounds])
        assert "Traceback" not in told, told
        assert (output / "samples.npz").read_bytes() == self.wanted, told
        assert sorted(path.name for path in output.iterdir()) == PLAIN, (sorted(output.rglob("*")), told)
        begun = Counter(self._log(output).read_text().split())
        failed = sum(one.failed for one in rounds)
        assert set(begun) == {str(part) for part in range(0, SAMPLES, BATCH)}, begun
        assert sum(begun.values()) <= len(begun) + failed, (begun, told)

    def _log(self, output: Path) -> Path:
        """Where the parts of a set are noted as they are begun: outside of a disk that may be full."""
        return self.folder / f"{output.name}.log"

    def _arguments(self, output: Path) -> list[str]:
        asked = ["lab", "eval", "samples", self.folder / "model", "--samples", SAMPLES, "--batch", BATCH]
        asked += ["--seed", SEED, "--schedule", self.folder / "schedule.json", "-o", output]
        return list(map(str, asked))


def _started(arguments: list[str], rank: int, world: int, said: Path, log: Path, full_at: int) -> int:
    """The number of a new process that runs the command as a launcher would start it."""
    if child := os.fork():
        return child
    status = 70
    try:
        with said.open("w") as file:
            os.dup2(file.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
        sys.argv = ["tenuto", *arguments]
        _note_parts(log)
        if full_at:
            _fill_disk(full_at)
        tenuto_main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _note_parts(log: Path) -> None:
    draw = samples.ModelPainter.draw

    def noted(self: Any, indices: range) -> Any:
        with log.open("a") as file:
            file.write(f"{indices.start}\n")
        return draw(self, indices)

    samples.ModelPainter.draw = noted  # type: ignore[method-assign]


def _fill_disk(at: int) -> None:
    """From the given write on, half of what is written arrives, and then there is no space left."""
    count, whole = 0, Path.write_bytes

    def write(self: Path, data: Any) -> int:
        nonlocal count
        count += 1
        if count < at:
            return whole(self, data)
        whole(self, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    Path.write_bytes = write  # type: ignore[method-assign]


def kill_one(place: Place, rng: random.Random, world: int, name: str, tries: int = 20) -> bool:
    """One of the processes is killed at a random moment before its end. Returns whether that could be met."""
    output = place.folder / name
    for turn in range(tries):
        moment = rng.uniform(0, place.seconds[world])
        first = place.run(output, world, kill=(rng.randrange(world), moment))
        assert set(first.statuses) <= {0, -signal.SIGKILL}, first
        if first.failed or turn == tries - 1:
            break
        place.check(output, [first])  # it had ended already
        place.seconds[world] *= 0.9
        shutil.rmtree(output)
        place._log(output).unlink()
    place.seconds[world] *= 1.05
    second = place.run(output, world)
    assert second.statuses == [0] * world, second
    place.check(output, [first, second])
    shutil.rmtree(output)
    return first.failed > 0


def fill_disk(place: Place, rng: random.Random, world: int, name: str) -> bool:
    """Writes fail from a random one on, in one process or in all. Returns whether any process came so far."""
    output = place.folder / name
    first = place.run(output, world, full_at=[rng.choice([0, rng.randint(1, 5)]) for _ in range(world)])
    return _freed(place, output, world, first)


def fill_small_disk(place: Place, rng: random.Random, world: int, name: str) -> bool:
    """The same on a disk that is really full, which takes the right to mount one."""
    disk = place.folder / f"{name}-disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={4 * rng.randint(1, 10)}k", "tmpfs", disk], check=True)
    try:
        first = place.run(disk / name, world)
        subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
        return _freed(place, disk / name, world, first)
    finally:
        subprocess.run(["umount", disk], check=True)
        disk.rmdir()


def _freed(place: Place, output: Path, world: int, first: Ended) -> bool:
    """After a full disk: the failed processes said so, and with space again the same command goes on."""
    assert set(first.statuses) <= {0, 1}, first
    for status, said in zip(first.statuses, first.said, strict=True):
        assert status == 0 or ("No space left on device" in " ".join(said.split())), said
    second = place.run(output, world)
    assert second.statuses == [0] * world, second
    place.check(output, [first, second])
    shutil.rmtree(output)
    return first.failed > 0


def may_mount() -> bool:
    """Whether small disks can be mounted, in a view of the file system that ends with this process."""
    new_mounts, private = 0x20000, 0x4000 | 0x40000
    libc = ctypes.CDLL(None)
    if os.geteuid() != 0 or libc.unshare(new_mounts) or libc.mount(b"none", b"/", None, private, None):
        return False
    with tempfile.TemporaryDirectory() as folder, suppress(OSError):
        done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True).returncode == 0
        if done:
            subprocess.run(["umount", folder], check=True)
        return done
    return False


def fuzz(seed: int, seconds: float, rounds: int | None = None) -> str:
    """Faults of every kind in turn until the time is over, or so many. Returns one line of what was tried."""
    torch.set_num_threads(1)
    rng, tried, hit = random.Random(seed), Counter[str](), Counter[str]()
    faults: dict[str, Any] = {"worker killed": kill_one, "writes fail": fill_disk}
    if may_mount():
        faults["small disk full"] = fill_small_disk
    end = time.monotonic() + seconds
    turns = [(name, world) for name in faults for world in WORLDS]
    with tempfile.TemporaryDirectory() as folder:
        place = Place.prepared(Path(folder))
        while (sum(tried.values()) < rounds) if rounds is not None else (time.monotonic() < end):
            name, world = turns[sum(tried.values()) % len(turns)]
            hit[name] += faults[name](place, rng, world, f"set{sum(tried.values())}")
            tried[name] += 1
    said = ", ".join(f"{name} {tried[name]} times ({hit[name]} in the middle)" for name in faults)
    return f"eval_workers: seed {seed}, {sum(tried.values())} faults under {WORLDS} processes: {said}; all sets equal."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, help="So many faults, however long they take.")
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    asked = parser.parse_args()
    made = provenance("cpu", seed=asked.seed)
    said = fuzz(asked.seed, asked.seconds, asked.rounds)
    print(said)
    if asked.out is not None:
        write_json(asked.out, {"provenance": made, "workers": said})


if __name__ == "__main__":
    main()
