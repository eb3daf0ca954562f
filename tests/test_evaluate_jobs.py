"""A set of samples is the same bytes however many processes make it, and whatever becomes of them."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import random_dit, write_checkpoint
from PIL import Image

import tenuto
from tenuto.cli import main
from tenuto.errors import TenutoError, UsageError
from tenuto.evaluate.jobs import Job, Worker
from tenuto.evaluate.samples import Order, make_samples
from tenuto.samplers.diffusion import generate

SAMPLES, BATCH = 13, 2  # seven parts, the last one short

# The command itself, noting the parts it begins; at part KILL_AT it is killed with the part half written.
WORKER = """
import os, signal, sys
from contextlib import contextmanager
import tenuto.evaluate.jobs as jobs
from tenuto.evaluate.samples import ModelPainter
from tenuto.cli import main

draw, replacing, begun = ModelPainter.draw, jobs.replacing, []

def noted(self, indices):
    begun.append(indices.start)
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{indices.start}\\n")
    return draw(self, indices)

@contextmanager
def killed(path):
    with replacing(path) as temporary:
        if len(begun) == int(os.environ.get("KILL_AT", -1)):
            temporary.write_bytes(b"half a part")
            os.kill(os.getpid(), signal.SIGKILL)
        yield temporary

ModelPainter.draw, jobs.replacing = noted, killed
main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, a schedule for it, and the set as one process makes it."""
    folder = tmp_path_factory.mktemp("jobs")
    write_checkpoint(folder / "model", random_dit())
    schedule = tenuto.schedule(folder / "model", steps=8, budget=0.5)
    schedule.save(folder / "schedule.json")
    (folder / "worker.py").write_text(WORKER)
    order = Order(str(folder / "model"), SAMPLES, schedule=schedule, batch=BATCH, seed=5)
    assert make_samples(order, folder / "alone", Worker()) is not None
    return folder


def start(place: Path, output: str, rank: int = 0, world: int = 1, *options: str, **environment: object):
    arguments = ["eval", "samples", place / "model", "--samples", SAMPLES, "--batch", BATCH, "--seed", 5]
    arguments += ["--schedule", place / "schedule.json", "-o", place / output, *options]
    numbers = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOG": place / f"{output}.log", **environment}
    return subprocess.Popen(
        [sys.executable, place / "worker.py", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": str(1 + rank), **{name: str(value) for name, value in numbers.items()}},
        stderr=subprocess.PIPE,
        text=True,
    )


def begun(place: Path, output: str) -> Counter[int]:
    return Counter(int(line) for line in (place / f"{output}.log").read_text().split())


def everything() -> list[int]:
    return list(range(0, SAMPLES, BATCH))


@pytest.mark.parametrize("world", [2, 3])
def test_more_processes_make_the_same_bytes_and_no_part_twice(place, world):
    output = f"by{world}"
    workers = [start(place, output, rank, world) for rank in range(world)]
    for worker in workers:
        _, err = worker.communicate(timeout=120)
        assert worker.returncode == 0, err
    assert (place / output / "samples.npz").read_bytes() == (place / "alone" / "samples.npz").read_bytes()
    assert begun(place, output) == dict.fromkeys(everything(), 1)
    assert not (place / output / "parts").exists()


def test_a_killed_job_goes_on_where_it_stopped(place):
    worker = start(place, "killed", 0, 1, KILL_AT=3)
    worker.communicate(timeout=120)
    assert worker.returncode == -signal.SIGKILL
    assert not (place / "killed" / "samples.npz").exists()
    workers = [start(place, "killed", rank, 2) for rank in range(2)]
    for worker in workers:
        _, err = worker.communicate(timeout=120)
        assert worker.returncode == 0, err
    assert (place / "killed" / "samples.npz").read_bytes() == (place / "alone" / "samples.npz").read_bytes()
    assert begun(place, "killed") == {start: 1 + (start == 4) for start in everything()}  # the third, half written
    assert sorted(path.name for path in (place / "killed").iterdir()) == ["manifest.json", "samples.npz"]


def test_the_set_holds_what_the_sampler_gives_and_says_how(place):
    model = tenuto.load(place / "model")
    stored, manifest = np.load(place / "alone" / "samples.npz"), json.loads((place / "alone/manifest.json").read_text())
    schedule = tenuto.load_schedule(place / "schedule.json")
    images = generate(model, classes=[i % 4 for i in range(SAMPLES)], schedule=schedule, seed=5)
    wanted = ((images.clamp(-1, 1) + 1) * 127.5).round().permute(0, 2, 3, 1).numpy()
    assert stored["arr_0"].shape == (SAMPLES, 8, 8, 1) and stored["arr_0"].dtype == np.uint8
    assert np.abs(stored["arr_0"].astype(float) - wanted).max() <= 1
    assert stored["arr_1"].tolist() == [i % 4 for i in range(SAMPLES)]
    made = manifest["settings"]
    assert (made["samples"], made["guidance"], made["dtype"], made["vae"]) == (SAMPLES, 1.5, "float32", None)
    assert made["schedule"]["fingerprint"].startswith("sha256:") and made["schedule"]["work"] == schedule.budget
    assert manifest["provenance"]["seeds"] == [5, 5 + SAMPLES - 1]


@pytest.mark.parametrize(
    ("change", "name"),
    [({"guidance": 3.0}, "guidance"), ({"samples": 12}, "samples"), ({"schedule": None}, "schedule")],
)
def test_another_setting_in_the_same_directory_is_refused(place, change, name):
    schedule = tenuto.load_schedule(place / "schedule.json")
    settings = {"schedule": schedule, "samples": SAMPLES, "batch": BATCH, "seed": 5, "steps": 8, **change}
    with pytest.raises(TenutoError, match=f"holds another job: {name} is"):
        make_samples(Order(str(place / "model"), **settings), place / "alone")


def test_pictures_are_written_as_files_on_request(tmp_path, place, monkeypatch):
    arguments = ["eval", "samples", place / "model", "--samples", 3, "--steps", 2, "--png", "-o", tmp_path]
    monkeypatch.setattr(sys, "argv", ["tenuto", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    files = sorted((tmp_path / "pictures").glob("*.png"))
    stored = np.load(tmp_path / "samples.npz")["arr_0"]
    assert [np.asarray(Image.open(file)).tolist() for file in files] == stored[..., 0].tolist()


def test_a_part_that_somebody_works_on_is_left_to_them(tmp_path):
    settings = {"a": 1}
    first, second = (Job(tmp_path / "record.json", tmp_path / "parts", settings, 4, 2) for _ in range(2))
    inner: list[int] = []

    def work(part: range) -> bytes:
        if not inner:
            inner.append(second.run(lambda other: b"theirs", Worker()))  # while we hold the first part
        return b"ours"

    assert first.run(work, Worker()) == 1 and inner == [1]
    assert [first.path(part).read_bytes() for part in first.parts] == [b"ours", b"theirs"]


def test_a_job_is_not_finished_before_its_last_part(tmp_path):
    job = Job(tmp_path / "record.json", tmp_path / "parts", {}, 3, 2)
    assert not job.finish(lambda paths: pytest.fail("nothing is there to collect"))
    job.run(lambda part: bytes(part), Worker())

    def collect(paths):
        assert [path.read_bytes() for path in paths] == [b"\0\1", b"\2"]
        job.record.write_text('{"settings": {}}')

    assert job.finish(collect) and job.finish(lambda paths: pytest.fail("collected twice"))
    assert Job(job.record, job.directory, {}, 3, 2).run(lambda part: pytest.fail("made twice"), Worker()) == 0


def test_processes_are_numbered_by_their_launcher(monkeypatch):
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    worker = Worker.from_environment()
    assert (worker.rank, worker.world, worker.device("cuda"), worker.device("cpu")) == (5, 8, "cuda:1", "cpu")
    monkeypatch.setenv("RANK", "8")
    with pytest.raises(UsageError, match="RANK 8"):
        Worker.from_environment()
