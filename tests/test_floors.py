"""The lower bounds in pyproject.toml were tried: `make floors` records the run, and whoever changes a bound runs it."""

import json
import tomllib
from typing import Any

import pytest

from scripts.floors import RECORD, ROOT, lowest, same


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads(RECORD.read_text(encoding="utf-8"))


def test_the_recorded_run_passed(record: dict[str, Any]) -> None:
    assert record["demo"] and record["passed"] and not record["failed"]


def test_every_bound_is_as_it_was_tried(record: dict[str, Any]) -> None:
    now = lowest(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    tried = {name: record["asked"].get(name) for name in now}  # a package that is needed no more may be among them
    assert tried == now, "A lower bound changed since the lowest versions were tried: run `make floors`."
    installed = record["installed"]
    assert all(same(installed[name.replace("-", "_")], version) for name, version in now.items())


def test_the_record_says_where_it_came_from(record: dict[str, Any]) -> None:
    made = record["provenance"]
    assert made["command"].startswith("python -m scripts.floors")
    assert all(made[key] for key in ("commit", "date", "hardware", "python", "torch", "diffusers"))


def test_versions_are_compared_by_their_numbers() -> None:
    assert same("2.8", "2.8.0+cu128") and same("10", "10.0.0") and not same("0.19.1", "0.19.2")
