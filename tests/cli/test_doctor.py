"""The doctor says what is there, what is missing and what is broken, and asks nobody unless told to."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenuto.cli.doctor as doctor
from tenuto.cli import main
from tenuto.extras import EXTRAS

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["tenuto", "doctor", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return end.value.code, capsys.readouterr().out

    return run


def statuses(diagnosis: doctor.Diagnosis) -> dict[str, str]:
    return {finding.name: finding.status for finding in diagnosis.findings}


def test_it_lists_versions_hardware_and_the_shipped_models(run: Run) -> None:
    status, out = run("--json")
    found = json.loads(out)
    assert status == 0 and found["healthy"]
    assert found["versions"]["torch"] and found["versions"]["tenuto"]
    assert found["hardware"]["cpu"] and found["hardware"]["cores"] >= 1
    assert {"torch", "tiny-dit", "hub cache"} <= {one["name"] for one in found["findings"] if one["status"] == "fine"}


def test_it_tells_it_to_people(run: Run) -> None:
    status, out = run()
    assert status == 0
    assert "Nothing is broken" in out and "CUDA graphs" in out and "tiny-dit" in out


def test_what_is_not_installed_is_absent_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "ui", ("no_such_package",))
    diagnosis = doctor.diagnose()
    missing = next(one for one in diagnosis.findings if one.name == "extra ui")
    assert (missing.status, missing.remedy) == ("absent", "pip install '.[ui]' (in Tenuto's folder)")
    assert diagnosis.healthy


def test_every_extra_of_the_distribution_is_looked_for() -> None:
    named = {one.name for one in doctor.diagnose().findings}
    assert {f"extra {extra}" for extra in ("pipelines", "plots", "ui", "lab", "eval")} <= named


def test_a_cache_that_cannot_be_written_to_is_broken(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert statuses(doctor.diagnose())["hub cache"] == "broken"
    assert run()[0] == 1


def test_damaged_weights_are_broken_and_absent_ones_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tenuto.models.PACKAGE", tmp_path / "a" / "b")
    folder = tmp_path / "a" / "b" / "weights" / "tiny-dit"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    found = statuses(doctor.diagnose())
    assert found["tiny-dit"] == "broken" and found["tiny-uvit"] == "absent"


def test_nobody_is_asked_unless_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*arguments: Any, **options: Any) -> None:
        raise OSError("asked")

    monkeypatch.setattr("socket.socket.connect", asked)
    monkeypatch.setattr("socket.getaddrinfo", asked)
    assert "hub" not in statuses(doctor.diagnose())
    hub = doctor.diagnose(network=True).findings[-1]
    assert (hub.name, hub.status) == ("hub", "absent") and "does not answer" in hub.what
