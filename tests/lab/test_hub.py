"""Schedules and score files go to the hub and come back as they were, with a card; a local server stands in for it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tenuto
from tenuto.errors import ScheduleError, TenutoError, UsageError
from tenuto_lab.hub import card, pull, push
from tests.conftest import random_dit, write_checkpoint
from tests.helpers.fake_hub import TOKEN, FakeHub, fake_hub


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, its scores, a schedule that needs none, and one that they decided, in a folder."""
    folder = tmp_path_factory.mktemp("made")
    scores = tenuto.score(write_checkpoint(folder / "dit", random_dit()))
    scores.save(folder / "scores.json")
    tenuto.schedule(scores, steps=12, budget=0.34).save(folder / "schedule.json")
    tenuto.schedule(scores, steps=12, policy="lifetimes").save(folder / "scored.json")
    return folder


def point_to(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_ENDPOINT would, which the hub's client reads when it is imported."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + template[template.index("/{repo_id}") :])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    from huggingface_hub import constants

    with fake_hub() as server:
        point_to(server.endpoint, monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def test_a_schedule_comes_back_as_it_was(hub: FakeHub, made: Path, tmp_path: Path) -> None:
    address = push(made / "schedule.json", "me/some", private=True, message="The first")
    assert address.startswith(f"{hub.endpoint}/me/some/commit/")
    assert hub.created["me/some"]["visibility"] == "private" and hub.messages == ["The first"]
    assert hub.files("me/some")["schedule.png"].startswith(b"\x89PNG")
    assert pull("me/some", tmp_path / "pulled") == [tmp_path / "pulled" / "schedule.json"]
    assert (tmp_path / "pulled" / "schedule.json").read_bytes() == (made / "schedule.json").read_bytes()


def test_a_second_push_keeps_what_is_there_and_revisions_can_be_named(hub: FakeHub, made: Path, tmp_path: Path) -> None:
    first = push(made / "schedule.json", "me/both").rsplit("/", 1)[1]
    push(made / "scores.json", "me/both")
    assert set(hub.files("me/both")) == {"README.md", "schedule.json", "schedule.png", "scores.json", "scores.png"}
    readme = hub.files("me/both")["README.md"].decode()
    assert "## schedule.json" in readme and "## scores.json" in readme
    assert [path.name for path in pull("me/both", tmp_path / "new")] == ["schedule.json", "scores.json"]
    assert [path.name for path in pull("me/both", tmp_path / "old", revision=first)] == ["schedule.json"]


def test_the_card_says_what_it_is_and_how_to_use_it(made: Path) -> None:
    import yaml  # type: ignore[import-untyped]

    schedule = tenuto.load_schedule(made / "schedule.json")
    text = card("me/some", {"schedule.json": schedule}, base_model="owner/dit")
    _, matter, body = text.split("---\n", 2)
    assert yaml.safe_load(matter)["library_name"] == "tenuto"
    assert yaml.safe_load(matter)["base_model"] == "owner/dit"
    assert "| work | the network is evaluated at 6 of 12 steps (50.0%) |" in body and "(schedule.png)" in body
    assert schedule.fingerprint is None and "fits any weights" in body
    assert "tenuto pull me/some" in body and "--schedule pulled/schedule.json" in body


def test_the_card_does_not_name_the_folders_of_its_maker(made: Path) -> None:
    schedule = tenuto.load_schedule(made / "schedule.json")
    assert schedule.model == str(made / "dit")
    text = card("me/some", {"schedule.json": schedule})
    assert str(made) not in text and "| model | dit |" in text and "base_model" not in text


def test_a_pulled_schedule_for_other_weights_is_refused_when_used(hub: FakeHub, made: Path, tmp_path: Path) -> None:
    push(made / "scored.json", "me/some")
    assert "A model with other weights refuses it." in hub.files("me/some")["README.md"].decode()
    (path,) = pull("me/some", tmp_path)
    other = tenuto.load(write_checkpoint(tmp_path / "dit", random_dit(seed=1)))
    with pytest.raises(ScheduleError, match="made from other weights"):
        tenuto.generate(other, [0], steps=12, schedule=tenuto.load_schedule(path))
    mine = tenuto.load(made / "dit")
    assert torch.isfinite(tenuto.generate(mine, [0], steps=12, schedule=tenuto.load_schedule(path))).all()


def test_a_schedule_that_no_weight_decided_fits_any_weights(made: Path, tmp_path: Path) -> None:
    schedule = tenuto.load_schedule(made / "schedule.json")
    assert schedule.fingerprint is None
    other = tenuto.load(write_checkpoint(tmp_path / "dit", random_dit(seed=1)))
    assert torch.isfinite(tenuto.generate(other, [0], steps=12, schedule=schedule)).all()


def test_without_matplotlib_the_card_has_no_picture_and_that_is_said(
    hub: FakeHub, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.warns(UserWarning, match=r"without pictures. .* pip install '\.\[plots\]'"):
        push(made / "schedule.json", "me/some")
    assert set(hub.files("me/some")) == {"README.md", "schedule.json"}
    assert "schedule.png" not in hub.files("me/some")["README.md"].decode()


def test_a_name_that_a_shell_would_take_apart_is_not_offered_as_a_command(made: Path) -> None:
    schedule = replace(tenuto.load_schedule(made / "schedule.json"), model="x; rm -rf ~")
    assert "tenuto generate MODEL --schedule" in card("me/some", {"schedule.json": schedule})


def test_offline_nothing_is_pushed_and_the_cache_is_pulled_from(
    hub: FakeHub, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    push(made / "schedule.json", "me/some")
    pull("me/some", tmp_path / "first")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    before = len(hub.requests)
    with pytest.raises(TenutoError, match="HF_HUB_OFFLINE is set. Unset it"):
        push(made / "schedule.json", "me/some")
    (path,) = pull("me/some", tmp_path / "second")
    assert path.read_bytes() == (made / "schedule.json").read_bytes()
    with pytest.raises(TenutoError, match="in the cache, and HF_HUB_OFFLINE is set"):
        pull("me/never-pulled", tmp_path)
    assert len(hub.requests) == before


def test_errors_say_what_to_do(hub: FakeHub, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="owner/name, not 'nonsense'"):
        push(made / "schedule.json", "nonsense")
    with pytest.raises(TenutoError, match="there is no such repository"):
        pull("me/absent", tmp_path)
    push(made / "schedule.json", "me/some")
    with pytest.raises(TenutoError, match="me/some@v9: the repository has no such revision"):
        pull("me/some", tmp_path, revision="v9")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(TenutoError, match="Set HF_TOKEN, or run: hf auth login"):
        push(made / "schedule.json", "me/other")
    (tmp_path / "other.json").write_text('{"format": "else"}')
    with pytest.raises(TenutoError, match="neither a schedule"):
        push(tmp_path / "other.json", "me/some")


def test_what_is_pulled_is_read_strictly_and_a_bad_file_is_not_kept(hub: FakeHub, made: Path, tmp_path: Path) -> None:
    record = json.loads((made / "schedule.json").read_text())
    hub.repositories["me/bad"] = {"1" * 40: {"schedule.json": json.dumps({**record, "steps": 99}).encode()}}
    with pytest.raises(ScheduleError, match="says 99"):
        pull("me/bad", tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()


def test_a_hub_that_cannot_be_reached_is_said_to_be_so(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_to("http://127.0.0.1:9", monkeypatch)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the client's tries
    with pytest.raises(TenutoError, match="the hub cannot be reached"):
        pull("me/some", tmp_path)


def test_the_commands_find_the_hub_by_the_usual_variables(made: Path, tmp_path: Path) -> None:
    with fake_hub() as server:
        environment = {**os.environ, "HF_ENDPOINT": server.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")}
        environment.pop("HF_HUB_OFFLINE", None)

        def run(*arguments: object) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", "from tenuto.cli import main; main()", *map(str, arguments)]
            return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)

        pushed = run("push", made / "schedule.json", "me/some", "-m", "By hand")
        assert pushed.returncode == 0, pushed.stderr
        assert "/me/some/commit/" in pushed.stdout and server.messages == ["By hand"]
        pulled = run("pull", "me/some@main", "-o", "pulled", "--json")
        assert json.loads(pulled.stdout)["files"] == ["pulled/schedule.json"]
        refused = run("pull", "me/some@", "-o", "pulled")
        assert refused.returncode == 2 and "names no revision" in refused.stderr
