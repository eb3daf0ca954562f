"""Files that somebody else wrote, with the worst intentions: each is answered with a sentence."""

import errno
import json
import math
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tenuto
from tenuto.errors import CheckpointError, TenutoError
from tenuto.files import locked
from tenuto.models import open_model
from tenuto.scheduling.schedule import load_schedule
from tenuto_lab.full_size.jobs import Job
from tenuto_lab.full_size.published_tasks import records
from tenuto_lab.full_size.tasks import read_tasks
from tenuto_lab.journal import Journal
from tenuto_lab.paper.writing_bench import read_problems
from tenuto_lab.scoring.scores import load_scores
from tests.conftest import random_dit, write_checkpoint


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model", random_dit(), shards=2)


def records_of(path: Path) -> Any:
    return list(records(path))


def problems_of(path: Path) -> Any:
    return read_problems(path, None)  # type: ignore[arg-type]  # the model is asked only for problems that can be read


def renamed(directory: Path, name: str) -> None:
    """The index names another file instead of the first shard."""
    index = directory / "model.safetensors.index.json"
    record = json.loads(index.read_text())
    first = min(record["weight_map"].values())
    record["weight_map"] = {key: name if file == first else file for key, file in record["weight_map"].items()}
    index.write_text(json.dumps(record))


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "below/../../secret.safetensors", "..\\\\secret"]
)
def test_an_index_that_names_a_file_elsewhere_is_refused(sharded: Path, name: str) -> None:
    (sharded / "model-00001-of-00002.safetensors").rename(sharded.parent / "secret.safetensors")
    renamed(sharded, name)
    with pytest.raises(CheckpointError, match="outside of the checkpoint's own folder"):
        tenuto.score(sharded)


def test_a_shard_below_the_folder_is_read(sharded: Path) -> None:
    before = tenuto.score(sharded).units
    (sharded / "below").mkdir()
    (sharded / "model-00001-of-00002.safetensors").rename(sharded / "below" / "part.safetensors")
    renamed(sharded, "below/part.safetensors")
    assert tenuto.score(sharded).units == before


def test_a_link_that_leads_elsewhere_is_refused_but_not_that_of_the_hub_s_cache(sharded: Path, tmp_path: Path) -> None:
    shard = sharded / "model-00001-of-00002.safetensors"
    shard.rename(tmp_path / "elsewhere.safetensors")
    shard.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(CheckpointError, match="is a link to .*elsewhere"):
        tenuto.score(sharded)
    cache = tmp_path / "models--owner--name"
    (cache / "blobs").mkdir(parents=True)
    snapshot = cache / "snapshots" / "0123"
    snapshot.parent.mkdir()
    shard.unlink()
    (tmp_path / "elsewhere.safetensors").rename(cache / "blobs" / "abc")
    sharded.rename(snapshot)
    (snapshot / shard.name).symlink_to("../../blobs/abc")
    assert tenuto.score(snapshot).units


@pytest.mark.parametrize("read", [load_schedule, load_scores, tenuto.score, read_tasks, records_of, problems_of])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, read: Any) -> None:
    pipe = tmp_path / "model.safetensors"
    os.mkfifo(pipe)
    with pytest.raises(TenutoError, match="it is a pipe or a device"):
        read(pipe)


def test_weights_that_may_not_be_read_are_not_called_missing(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read every file, so the refusal is played."""
    opened = Path.open

    def refused(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.suffix == ".safetensors":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(TenutoError, match=r"model-0000\d-of-00002\.safetensors: Permission denied"):
        tenuto.score(sharded)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a": ' * 100_000, f'{{"steps": {"9" * 5000}}}', '{"a": NaN', "\ufeff{}"]
)
@pytest.mark.parametrize("read", [load_schedule, load_scores, read_tasks, records_of, problems_of])
def test_json_that_no_reader_survives_is_named(tmp_path: Path, read: Any, text: str) -> None:
    (tmp_path / "bad.json").write_text(text, encoding="utf-8")
    with pytest.raises(TenutoError, match=r"bad\.json"):
        read(tmp_path / "bad.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 2**62},
        {"depth": 10**9},
        {"num_classes": 10**12},
        {"input_size": 10**8},
        {"hidden_size": 4 * 10**6, "depth": 10**6},
        {"mlp_ratio": 1e300},
        {"hidden_size": -4},
        {"depth": "12"},
    ],
)
def test_sizes_that_no_machine_holds_are_refused_at_once(tmp_path: Path, changes: dict[str, Any]) -> None:
    directory = write_checkpoint(tmp_path / "model", random_dit())
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(CheckpointError):
        open_model(str(directory))


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "a\0b", "x" * 5000])
def test_names_that_cannot_be_opened_are_sentences(name: str) -> None:
    with pytest.raises(CheckpointError):
        open_model(name)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_a_mutated_schedule_is_read_or_refused_in_a_sentence(data: st.DataObject, tmp_path_factory: Any) -> None:
    record: Any = json.loads(json.dumps(RECORD))
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = record
        key = data.draw(st.sampled_from(sorted(place)))
        if isinstance(place[key], dict) and place[key] and data.draw(st.booleans()):
            place = place[key]
            key = data.draw(st.sampled_from(sorted(place)))
        junk = st.sampled_from(
            [None, -1, 0, 1e400, 10**30, "", "#" * 9, [], {}, [[]], True, "tenuto.schedule/1", "\x1b[2J"]
        )
        if data.draw(st.booleans()):
            place[key] = data.draw(junk)
        else:
            del place[key]
        if not record:
            break
    path = tmp_path_factory.mktemp("mutated") / "s.json"
    path.write_text(json.dumps(record))
    with suppress(TenutoError):
        load_schedule(path)


RECORD = {
    "format": "tenuto.schedule/2",
    "tenuto_version": "0",
    "model": "toy",
    "fingerprint": None,
    "policy": {"name": "refresh", "every": 2},
    "steps": 4,
    "predict": "linear",
    "keep": "output",
    "rows": "none",
    "blocks": 1,
    "corrected": True,
    "flops": {"a": 1.0, "b": 2.0},
    "active": {"a": "#.#.", "b": "#.#."},
}


@pytest.mark.parametrize("junk", [10**25, -1, 2.5, 1e308, "x", [], {}, math.nan, math.inf, True])
def test_an_absurd_number_is_answered_with_a_sentence(sharded: Path, junk: Any) -> None:
    """In some places one of these makes sense, and is taken."""
    scores = tenuto.score(sharded)
    requests: dict[str, Any] = {
        **{name: partial(tenuto.schedule, scores, 10) for name in ("every", "evaluations", "keep", "predict")},
        **{name: partial(tenuto.schedule, scores, 10, policy="lifetimes") for name in ("tau", "min_lifetime")},
        **{name: partial(tenuto.schedule, "small-llada", 10) for name in ("held", "rows", "blocks")},
        **dict.fromkeys(("guidance", "guided_channels", "quality"), tenuto.Sampling),
        **dict.fromkeys(("temperature", "top_p", "factor", "parallel", "seed", "length"), tenuto.MaskedSampling),
        "eta": partial(tenuto.score, sharded),
    }
    for name, ask in requests.items():
        with suppress(TenutoError):
            taken = ask(**{name: junk})
            assert name not in ("keep", "predict", "rows"), f"{name}={junk!r} was taken for no wish"
            for number in vars(taken).values() if name in ("temperature", "factor") else ():
                assert number is None or isinstance(number, str) or float(number) <= 1e6


@pytest.mark.parametrize(
    "open_one", [lambda path: locked(path, wait=False).__enter__(), lambda path: Journal(path, {})]
)
def test_a_pipe_in_the_place_of_a_lock_or_a_journal_is_refused(tmp_path: Path, open_one: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TenutoError, match="it is a pipe or a device"):
        open_one(tmp_path / "pipe")


def test_a_pipe_in_the_place_of_a_part_is_refused(tmp_path: Path) -> None:
    job = Job(tmp_path / "record.json", tmp_path / "parts", {}, count=4, batch=2)
    os.mkfifo(job.path(job.parts[1]))
    with pytest.raises(TenutoError, match="it is a pipe or a device"):
        job.missing()
