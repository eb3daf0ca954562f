"""The benchmark of settings: flow matching samples from a network of noise, and rows keep their own origin."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tenuto
from benchmarks import settings
from benchmarks.settings import SCHEDULERS, Noise, drawn, measure, table
from tenuto_lab.frontier.cases import asked_for
from tenuto_lab.frontier.named_rivals import noise_of

MADE = {"command": "x", "commit": "y", "torch": "2", "hardware": "a CPU", "date": "today"}


def test_flow_matching_holds_and_takes_as_many_evaluations_as_asked(checkpoint: Path) -> None:
    model = tenuto.load(str(checkpoint))
    noise = noise_of(model, 0, 2)
    network = Noise(model, asked_for(model, 2)[1], 3.0, 0.0, flow=True)
    full = drawn(network, SCHEDULERS["flow matching"](), 20, noise)
    assert network.evaluations == 20 and bool(torch.isfinite(full).all())
    rows = list(measure(model, "flow matching", 3.0, 0.0, (20,), 2, full))
    assert [row["evaluations"] for row in rows] == [10, 7, 6] and rows[0]["full_full"] == 200
    assert all(10 < row["ours_full"] < 200 for row in rows)  # held, and still near, though the weights are random


def test_rows_that_are_added_say_where_they_come_from() -> None:
    ways = [f"{way}_{goal}" for way in ("ours", "fewer", "full") for goal in ("full", "converged")]
    row = {"steps": 20, "evaluations": 10, **dict.fromkeys(ways, 30.0)}
    case: dict[str, Any] = {"network": "tiny-dit", "guidance": 3.0, "rescaled": 0.0, "rows": [row]}
    added = {**case, "scheduler": "flow matching", "provenance": MADE | {"commit": "z"}, "samples": 4}
    text = table({"provenance": MADE, "samples": 8, "cases": [{**case, "scheduler": "DDIM"}, added]})
    assert "8 samples; `x` at y" in text and "tiny-dit by flow matching: 4 samples; `x` at z" in text


def test_a_run_adds_to_the_file_and_leaves_the_origin_of_the_rest(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "CONVERGED", 20)
    places = {"out": tmp_path / "settings.json", "only": [str(checkpoint)], "device": "cpu", "seconds": 1e9}
    asked = {"guidance": [5.0], "steps": [12], "samples": 1, "draw_only": False, **places}
    settings.main(schedulers=["DDIM"], rescaled_too=False, **asked)
    first = settings.read_result(places["out"], "table of settings", settings.RECORD)
    settings.main(schedulers=["DDIM", "flow matching"], rescaled_too=False, **asked)
    second = settings.read_result(places["out"], "table of settings", settings.RECORD)
    assert second["cases"][:1] == first["cases"] and len(second["cases"]) == 2
    assert all("provenance" in case and not case["rescaled"] for case in second["cases"])
