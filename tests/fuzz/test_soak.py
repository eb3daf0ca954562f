"""The soak sees what it looks for: stale pictures, what is left on a pipeline, and memory that grows."""

from typing import Any

import pytest
from torch import Tensor

import tenuto
from tests.fuzz import commands, controls, soak
from tests.fuzz.memory import growth
from tests.fuzz.table import table
from tests.helpers.pipelines import QUIET, denoiser_in

pytestmark = QUIET


def test_a_short_soak_finds_nothing() -> None:
    found = soak.soak(15, seed=1)
    assert found["generations"] == 15 and found["compared"] == 3
    assert not found["stale"] and not found["leaked"] and found["memory"][-1]["resident_mib"] > 0


def test_what_is_left_on_a_pipeline_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    disable = tenuto.disable

    def careless(pipe: Any) -> None:
        disable(pipe)
        denoiser_in(pipe).register_forward_hook(lambda *_: None)

    monkeypatch.setattr(tenuto, "disable", careless)
    assert soak.soak(1, seed=0)["leaked"]


def test_a_stale_picture_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SIDES": (8,), "BATCHES": (1,), "LOOKED_AT": 1}.items():
        monkeypatch.setattr(soak, name, value)
    draw, first = soak.draw, list[Tensor]()

    def stale(pipe: Any, *args: Any, **asked: Any) -> Tensor:
        first.append(draw(pipe, *args, **asked))
        return first[0]

    monkeypatch.setattr(soak, "draw", stale)
    assert not soak.soak(2, seed=0)["stale"]  # every picture is the first one, the fresh pipeline's as well
    monkeypatch.setattr(soak, "draw", lambda pipe, *args, **asked: stale(pipe, *args, **asked) + len(first))
    assert soak.soak(2, seed=0)["stale"] == 2


def test_random_command_lines_end_in_a_status() -> None:
    found = commands.fuzz(15, seed=3)
    assert not found["bare_exceptions"] and sum(found["statuses"].values()) == 15


def test_growth_is_counted_after_the_first_quarter() -> None:
    samples = [{"resident_mib": float(one)} for one in (10, 20, 21, 22)]
    assert growth(samples) == {"resident_mib": 2.0} and growth([]) == {}


def test_the_table_has_a_column_for_each_machine_and_a_row_for_each_control() -> None:
    found = soak.soak(1, seed=0)
    made = {"command": "c", "commit": "0", "torch": "2", "hardware": "h", "date": "d"}
    run = {"provenance": made, "soak": found}
    parts = {"plain": {"rounds": 1200, "kib_a_round": 0.5}, "recording": {"failed": ["no GPU"]}}
    text = table({"CPU": run, "GPU": run}, {"provenance": made, "controls": parts})
    assert "|  | CPU | GPU |" in text and "| 1,200 | 0.5 |" in text and "| failed |" in text


@pytest.mark.parametrize("name", controls.CONTROLS)
def test_every_control_runs(name: str) -> None:
    found = controls.control(name, "cpu", 0.4)
    assert found["rounds"] > 0 and len(found["memory"]) == controls.SAMPLES
