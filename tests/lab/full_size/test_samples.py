"""A set of samples is the same bytes however many processes make it, and whatever becomes of them."""

import json
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, DiffusionPipeline
from PIL import Image

import tenuto
from tenuto.cli import main
from tenuto.errors import TenutoError, UsageError
from tenuto.pipelines.enable import accelerated
from tenuto.sampling.pictures import generate
from tenuto_lab.full_size.jobs import Job, Worker
from tenuto_lab.full_size.samples import Order, make_samples
from tests.conftest import random_dit, write_checkpoint

SAMPLES, BATCH = 13, 2  # seven parts, the last one short

# Rounds of processes, each the command itself as a launcher would start it; all are forks of one that has imported what
# they need. They note the parts they begin; one that is told to is killed with a part half written.
LAUNCHER = """
import json, os, signal, sys
from diffusers import DDIMScheduler
from contextlib import contextmanager
import tenuto_lab.full_size.jobs as jobs
from tenuto_lab.full_size.samples import ModelPainter
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
        if len(begun) == int(os.environ["KILL_AT"]):
            temporary.write_bytes(b"half a part")
            os.kill(os.getpid(), signal.SIGKILL)
        yield temporary

ModelPainter.draw, jobs.replacing = noted, killed

def start(process):
    if child := os.fork():
        return child
    os.environ.update(process["environment"])
    sys.argv = ["tenuto", *process["arguments"]]
    try:
        main()
    except SystemExit as ended:
        os._exit(ended.code)
    os._exit(70)

statuses = []
for processes in json.loads(sys.argv[1]):
    children = [start(process) for process in processes]
    statuses.append([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
print("statuses", json.dumps(statuses))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model, a schedule for it, and the set as one process makes it."""
    folder = tmp_path_factory.mktemp("jobs")
    write_checkpoint(folder / "model", random_dit())
    schedule = tenuto.schedule(folder / "model", steps=8, evaluations=4)
    schedule.save(folder / "schedule.json")
    order = Order(str(folder / "model"), SAMPLES, schedule=schedule, batch=BATCH, seed=5)
    assert make_samples(order, folder / "alone", Worker()) is not None
    return folder


@pytest.fixture(scope="module")
def launched(place: Any) -> Any:
    """How the processes of each round ended: two, three and one that is killed; then two that take its job up."""
    arguments = ["lab", "eval", "samples", place / "model", "--samples", SAMPLES, "--batch", BATCH, "--seed", 5]
    arguments += ["--schedule", place / "schedule.json"]

    def processes(output: str, world: int, kill_at: int = -1) -> list[dict[str, object]]:
        shared = {"WORLD_SIZE": world, "LOG": place / f"{output}.log", "KILL_AT": kill_at}
        environments = [{"RANK": rank, "LOCAL_RANK": rank, **shared} for rank in range(world)]
        given = list(map(str, [*arguments, "-o", place / output]))
        return [{"arguments": given, "environment": {k: str(v) for k, v in one.items()}} for one in environments]

    rounds = [processes("by2", 2), processes("by3", 3), processes("killed", 1, kill_at=3), processes("killed", 2)]
    (place / "launcher.py").write_text(LAUNCHER)
    command = [sys.executable, place / "launcher.py", json.dumps(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (place / "told.txt").write_text(done.stderr)
    return json.loads(done.stdout.split("statuses", 1)[1])


def begun(place: Path, output: str) -> Counter[int]:
    return Counter(int(line) for line in (place / f"{output}.log").read_text().split())


def everything() -> list[int]:
    return list(range(0, SAMPLES, BATCH))


@pytest.mark.parametrize(("world", "turn"), [(2, 0), (3, 1)])
def test_more_processes_make_the_same_bytes_and_no_part_twice(place: Any, launched: Any, world: int, turn: int) -> None:
    output = place / f"by{world}"
    assert launched[turn] == [0] * world, (place / "told.txt").read_text()
    assert (output / "samples.npz").read_bytes() == (place / "alone" / "samples.npz").read_bytes()
    assert begun(place, output.name) == dict.fromkeys(everything(), 1)
    assert sorted(path.name for path in output.iterdir()) == ["manifest.json", "samples.npz"]


def test_a_killed_job_goes_on_where_it_stopped(place: Any, launched: Any) -> None:
    assert launched[2:] == [[-signal.SIGKILL], [0, 0]], (place / "told.txt").read_text()
    assert (place / "killed" / "samples.npz").read_bytes() == (place / "alone" / "samples.npz").read_bytes()
    # The third part was half written, and is the only one that was begun again.
    assert begun(place, "killed") == {part: 1 + (part == 4) for part in everything()}
    assert sorted(path.name for path in (place / "killed").iterdir()) == ["manifest.json", "samples.npz"]


def test_the_set_holds_what_the_sampler_gives_and_says_how(place: Any) -> None:
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
def test_another_setting_in_the_same_directory_is_refused(place: Any, change: Any, name: str) -> None:
    schedule = tenuto.load_schedule(place / "schedule.json")
    settings = {"schedule": schedule, "samples": SAMPLES, "batch": BATCH, "seed": 5, "steps": 8, **change}
    with pytest.raises(TenutoError, match=f"holds another job: {name} is"):
        make_samples(Order(str(place / "model"), **settings), place / "alone")


def test_pictures_are_written_as_files_on_request(tmp_path: Path, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["lab", "eval", "samples", place / "model", "--samples", 3, "--steps", 2, "--png", "-o", tmp_path]
    monkeypatch.setattr(sys, "argv", ["tenuto", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    files = sorted((tmp_path / "pictures").glob("*.png"))
    stored = np.load(tmp_path / "samples.npz")["arr_0"]
    assert [np.asarray(Image.open(file)).tolist() for file in files] == stored[..., 0].tolist()


def test_latents_are_decoded_by_the_vae_that_the_manifest_names(tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4).save_pretrained(tmp_path / "vae")
    write_checkpoint(tmp_path / "latent", random_dit(in_channels=4))
    order = Order(str(tmp_path / "latent"), 3, steps=2, vae=tmp_path / "vae", dtype="bfloat16")
    manifest = make_samples(order, tmp_path / "set")
    assert manifest is not None
    made = manifest["settings"]
    assert np.load(tmp_path / "set" / "samples.npz")["arr_0"].shape == (3, 8, 8, 3)
    assert made["vae"]["fingerprint"].startswith("sha256:") and made["vae"]["dtype"] == "float32"
    assert made["dtype"] == "bfloat16"
    with pytest.raises(UsageError, match=r"name its VAE \(--vae\)"):
        make_samples(replace(order, vae=None), tmp_path / "other")


def test_a_pipeline_draws_captions_that_come_round_again(tmp_path: Path, pipeline_directory: Any) -> None:
    schedule = tenuto.schedule(pipeline_directory, steps=4, every=2)
    order = Order(str(pipeline_directory), 3, schedule, captions=("a car", "a"), seed=7, batch=2, guidance=2.0)
    manifest = make_samples(order, tmp_path / "set")
    assert manifest is not None
    assert manifest["provenance"]["captions"] == ["a car", "a"] and manifest["settings"]["guidance"] == 2
    drawn = np.load(tmp_path / "set" / "samples.npz")["arr_0"]
    pipe = DiffusionPipeline.from_pretrained(pipeline_directory)
    pipe.set_progress_bar_config(disable=True)
    with accelerated(pipe, schedule=schedule):
        generator = torch.Generator().manual_seed(9)
        last = pipe("a car", num_inference_steps=4, guidance_scale=2.0, generator=generator, output_type="np").images[0]
    assert np.abs(drawn[2] - last * 255).max() <= 1
    with pytest.raises(UsageError, match="--captions"):
        make_samples(replace(order, captions=()), tmp_path / "other")


def test_a_part_that_somebody_works_on_is_left_to_them(tmp_path: Path) -> None:
    settings = {"a": 1}
    first, second = (Job(tmp_path / "record.json", tmp_path / "parts", settings, 4, 2) for _ in range(2))
    inner: list[int] = []

    def work(part: range) -> bytes:
        if not inner:
            inner.append(second.run(lambda other: b"theirs", Worker()))  # while we hold the first part
        return b"ours"

    assert first.run(work, Worker()) == 1 and inner == [1]
    assert [first.stored(part).read() for part in first.parts] == [b"ours", b"theirs"]


def test_a_job_is_not_finished_before_its_last_part(tmp_path: Path) -> None:
    job = Job(tmp_path / "record.json", tmp_path / "parts", {}, 3, 2)
    assert not job.finish(lambda parts: pytest.fail("nothing is there to collect"))
    job.run(lambda part: bytes(part), Worker())

    def collect(parts: Any) -> None:
        assert [part.read() for part in parts] == [b"\0\1", b"\2"]
        job.record.write_text('{"settings": {}}')

    assert job.finish(collect) and job.finish(lambda parts: pytest.fail("collected twice"))
    assert Job(job.record, job.directory, {}, 3, 2).run(lambda part: pytest.fail("made twice"), Worker()) == 0


# What is not the job's own, and what was lost


def job_at(folder: Path, count: int = 4, **settings: Any) -> Job:
    return Job(folder / "record.json", folder / "parts", settings or {"a": 1}, count, 2)


def content(part: range) -> bytes:
    return bytes(part) * 100


def collected(job: Job, worked: list[int] | None = None) -> bytes:
    """What a job collects. worked: the parts that had to be computed are added here."""
    made: list[bytes] = []

    def work(part: range) -> bytes:
        if worked is not None:
            worked.append(part.start)
        return content(part)

    def collect(parts: Any) -> None:
        found = [part.read() for part in parts]
        made.extend(found)
        job.record.write_text(json.dumps({"settings": job.settings}))

    assert job.complete(work, collect, Worker())
    return b"".join(made)


def damage(job: Job, how: str, tmp_path: Path) -> None:
    """Put something else in the place of the second part."""
    path = job.path(job.parts[1])
    whole = path.read_bytes()
    other = job_at(tmp_path / "other", b=2)
    other.run(content, Worker())
    told = {
        "of another job": other.path(other.parts[1]).read_bytes(),
        "another part": job.path(job.parts[0]).read_bytes(),
        "without a header": content(job.parts[1]),
        "a line of JSON": b"tenuto part [1, 2]\n",
        "not JSON": b"tenuto part {",
        "truncated": whole[: len(whole) // 2],
        "empty": b"",
        "header only": whole.partition(b"\n")[0],
        "longer": whole + b"x",
        "a flipped bit": whole[:-1] + bytes([whole[-1] ^ 1]),
    }
    path.write_bytes(told[how])


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("of another job", "belongs to another job"),
        ("another part", "is another part of this job"),
        ("without a header", "is not a part of a job"),
        ("a line of JSON", "is not a part of a job"),
        ("not JSON", "is not a part of a job"),
        ("truncated", "is damaged: it holds"),
        ("empty", "is empty"),
        ("header only", "is damaged: it holds"),
        ("longer", "is damaged: it holds"),
        ("a flipped bit", "is damaged: its checksum does not fit"),
    ],
)
def test_a_part_that_is_not_the_job_s_own_is_named_and_made_again(tmp_path: Path, how: str, sentence: str) -> None:
    job = job_at(tmp_path / "job")
    job.run(content, Worker())
    damage(job, how, tmp_path)
    again, worked = job_at(tmp_path / "job"), []
    with pytest.warns(UserWarning, match=f"00000002-00000004 {sentence}.*It is made again."):
        assert collected(again, worked) == content(range(2)) + content(range(2, 4))
    assert worked == [2] and not (tmp_path / "job" / "parts").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"settings": 3}'])
def test_a_description_that_cannot_be_read_is_written_again(tmp_path: Path, text: str) -> None:
    job_at(tmp_path).run(content, Worker())
    (tmp_path / "parts" / "job.json").write_text(text)
    worked: list[int] = []
    with pytest.warns(UserWarning, match="job.json .*It is written again."):
        job = job_at(tmp_path)
    assert collected(job, worked) == content(range(2)) + content(range(2, 4)) and worked == []


def test_a_description_that_cannot_be_read_does_not_give_another_job_away(tmp_path: Path) -> None:
    first = job_at(tmp_path)
    first.run(content, Worker())
    before = [first.path(part).read_bytes() for part in first.parts]
    (tmp_path / "parts" / "job.json").write_text("")
    with pytest.raises(TenutoError, match="belongs to another job: take another place"):
        job_at(tmp_path, a=2)
    assert [first.path(part).read_bytes() for part in first.parts] == before


def test_a_folder_that_another_process_removes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir, errors = Path.mkdir, [FileExistsError(17, "File exists"), FileNotFoundError(2, "No such file")]

    def raced(self: Path, *given: Any, **options: Any) -> None:
        if self.name == "parts" and errors:
            raise errors.pop()
        mkdir(self, *given, **options)

    monkeypatch.setattr(Path, "mkdir", raced)
    assert len(collected(job_at(tmp_path))) == 400 and not errors
    (tmp_path / "other").write_text("a file")
    with pytest.raises(TenutoError, match="Cannot write .*beginning.lock: (File exists|Not a directory)"):
        Job(tmp_path / "r.json", tmp_path / "other", {}, 4, 2)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"settings": []}'])
def test_a_record_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(TenutoError, match="record.json is no"):
        job_at(tmp_path)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: Any) -> Any:
        monkeypatch.setattr(sys, "argv", ["tenuto", "lab", "eval", "samples", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out + " ".join(captured.err.split())

    return run


def test_a_set_that_was_lost_is_made_again(tmp_path: Path, place: Any, command: Any) -> None:
    arguments = [place / "model", "--samples", 3, "--steps", 2, "-o", tmp_path]
    assert command(*arguments)[0] == 0
    made = (tmp_path / "samples.npz").read_bytes()
    (tmp_path / "samples.npz").unlink()
    status, said = command(*arguments)
    assert status == 0 and "was lost" in said and "it is made again" in said
    assert (tmp_path / "samples.npz").read_bytes() == made
    (tmp_path / "samples.npz").write_bytes(made[:-10])
    status, said = command(*arguments)
    assert status == 1 and "is not the set that" in said and "its checksum is another one" in said
    assert (tmp_path / "samples.npz").read_bytes() == made[:-10]
    (tmp_path / "samples.npz").write_bytes(made)
    (tmp_path / "manifest.json").write_text('{"settings": {}}')
    assert command(*arguments)[0] == 1


def test_pictures_of_a_finished_set_are_written_on_request(tmp_path: Path, place: Any, command: Any) -> None:
    arguments = [place / "model", "--samples", 3, "--steps", 2, "-o", tmp_path]
    assert command(*arguments)[0] == 0 and not (tmp_path / "pictures").exists()
    assert command(*arguments, "--png")[0] == 0
    files = sorted((tmp_path / "pictures").iterdir())
    stored = np.load(tmp_path / "samples.npz")["arr_0"]
    assert [np.asarray(Image.open(file)).tolist() for file in files] == stored[..., 0].tolist()
    before = [file.stat().st_mtime_ns for file in files[:2]]
    files[2].unlink()
    assert command(*arguments, "--png")[0] == 0 and files[2].exists()
    assert [file.stat().st_mtime_ns for file in files[:2]] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "pictures", "samples.npz"]


def test_processes_are_numbered_by_their_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    worker = Worker.from_environment()
    assert (worker.rank, worker.world, worker.device("cuda"), worker.device("cpu")) == (5, 8, "cuda:1", "cpu")
    monkeypatch.setenv("RANK", "8")
    with pytest.raises(UsageError, match="RANK 8"):
        Worker.from_environment()
