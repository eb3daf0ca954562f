"""The timings add up and say what they are; how large they are is the benchmarks' matter."""

import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tenuto.models import architecture
from tenuto.models.dit import DiTConfig
from tenuto_lab.speed.ladder import PERIODS, ladder, measure, scattered_lifetimes, timed_network, where_time_goes
from tenuto_lab.speed.ladder_report import headlines, ladder_picture, ladder_tables
from tests.conftest import TINY, random_dit

CONFIG = DiTConfig(**cast(dict[str, Any], TINY))


@pytest.fixture(scope="module")
def subject() -> Any:
    return timed_network("toy", random_dit(), architecture("dit"), CONFIG, batch=2)


def test_every_way_there_is_on_this_device_is_timed(subject: Any) -> None:
    rungs = ladder(subject, 0.35, 10)
    rows = list(measure(subject, rungs, repeats=1))
    assert [row.schedule for row in rows] == [
        "full",
        "lifetimes 35%",
        *(f"refresh {n}{held}" for n in PERIODS[:-1] for held in ("", ", output held")),
        *(f"refresh {PERIODS[-1]}{held}" for held in ("", ", update held", ", output held")),
    ]
    assert rows[0].speedup_over_eager == 1 and rows[0].budget == 1
    assert all(row.ms_per_generation == pytest.approx(row.steps * row.ms_per_evaluation) for row in rows)
    assert (
        rows[-1].cache_bytes < rows[-2].cache_bytes < rows[-3].cache_bytes
    )  # outputs, sums of neighbours, each by itself


def test_inputs_are_those_a_sampler_gives(subject: Any) -> None:
    given = [False, True, False, True, True]
    for ahead, (inputs, named) in zip(given, subject.inputs(given), strict=True):
        assert subject.network(*inputs, **named).shape == (2, 1, 8, 8)
        assert set(named) == ({"modulations"} if ahead else set())


@pytest.mark.parametrize("name", ["small-llada", "tiny-sdxl", "tiny-uvit"])
def test_every_family_can_be_a_subject(name: str) -> None:
    import tenuto

    model = tenuto.load(name)
    tokens = 48 if name == "small-llada" else None
    one = timed_network(name, model.network, model.architecture, model.config, batch=2, tokens=tokens)
    with torch.inference_mode():
        for inputs, named in one.inputs([True]):
            assert torch.isfinite(one.network(*inputs, **named)).all()
    assert one.flops > 0 and one.weight_bytes > 0


def test_scattered_lifetimes_meet_their_budget(subject: Any) -> None:
    units = architecture("dit").units(DiTConfig())
    schedule = scattered_lifetimes(units, 100, 0.34)
    assert schedule.budget == pytest.approx(0.34, abs=0.01) and len(set(schedule.lifetimes)) > 20


def test_where_the_time_goes_is_all_of_it(subject: Any) -> None:
    spent = where_time_goes(subject)
    assert sum(spent.values()) > 0 and "matrix products" in spent


def test_tables_and_picture_show_every_row(subject: Any, tmp_path: Path) -> None:
    rows = [{"case": "dit:2", **row.to_json()} for row in measure(subject, ladder(subject, 0.35, 10), repeats=1)]
    made: dict[str, Any] = {"command": "c", "commit": "abc", "torch": "2", "hardware": "h", "date": "d"}
    made |= {"ceilings": {"tflops": 1.0, "gbps": 1.0}, "spent": {"attention": 1.0, "copies": 3.0}}
    known = {"settings": {"dit:2": made}, "rows": rows}
    text = ladder_tables(known, {"dit": 3.0})
    assert all(row["schedule"] in text for row in rows) and "copies 75%" in text
    ladder_picture(known, tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").stat().st_size > 1000
    for row in rows[:3]:  # as on a GPU
        row["mode"], row["share_of_ideal"] = "jagged + compiled", 0.9
    rows.insert(0, {**rows[0], "mode": "eager"})
    rows[-1] |= {"mode": "jagged + compiled", "schedule": "refresh 8"}
    assert re.search(r"\| toy, batch 2 \|.*\| 3\.0× \|", headlines(known, {"dit": 3.0}))
