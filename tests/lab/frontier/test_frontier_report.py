"""A frontier's tables hold every way once, and its pictures are drawn of whatever was measured."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tenuto_lab.frontier.frontier_report import (
    frontier_image,
    frontier_picture,
    frontier_tables,
    models_of,
    page_tables,
)
from tenuto_lab.frontier.known import known_frontier
from tenuto_lab.frontier.measurements import Comparison, Measurement

MADE = {"command": "python -m benchmarks.frontier", "commit": "abc", "torch": "2", "hardware": "a chip", "date": "now"}
WAYS = (("tenuto", "ours"), ("plain refresh, linear", "option"), ("fewer steps", "rival"))
BUDGETS = (0.5, 0.25)


def row(policy: Any, kind: Any, budget: Any, seed: Any, **measured: Any) -> Any:
    share = measured.pop("flop_work", budget)
    model, steps = measured.pop("model", "tiny-dit"), measured.pop("steps", 50)
    return Measurement(
        model, policy, kind, steps, steps, "ddim", budget, budget, share, seed, 8, share, 1.0, **measured
    )


def picture(decibels: Any) -> Any:
    return {"psnr": decibels, "psnr_low": decibels - 2, "psnr_high": decibels + 2, "lpips": 0.01}


def text(nats: Any) -> Any:
    ends = {"nll_delta_low": nats - 0.05, "nll_delta_high": nats + 0.05}
    return {"model": "small-llada", "nll": 2 + nats, "nll_delta": nats, **ends, "same_tokens": 0.9, "needle": 0.5}


def case_rows(quality: Any, **options: Any) -> Iterator[Any]:
    """Two seeds of each way; the second is worth one more than the first."""
    for seed in (0, 1):
        yield row("full", "full", 1.0, seed, **quality(200.0), **options)
        for rank, (policy, kind) in enumerate(WAYS):
            for budget in BUDGETS:
                yield row(policy, kind, budget, seed, **quality(40 * budget + 20 - rank + seed), **options)
        yield row("anchors, early", "option", 0.25, seed, **quality(25.0), **options)
        yield row("lifetimes (the paper)", "paper", 0.35, seed, flop_work=0.28, **quality(11.0), **options)
        for threshold, share in ((0.02, 0.9), (0.1, 0.5), (0.2, 0.4)):
            policy = f"first block, threshold {threshold}"
            yield row(policy, "rival", 0.0, seed, flop_work=share, **quality(100 * share - 20), **options)


def record_of(**cases: Any) -> Any:
    rows = [{"case": case, **one.to_json()} for case, its in cases.items() for one in its]
    return {"cases": {case: dict(MADE) for case in cases}, "rows": rows, "comparisons": []}


def nats(decibels: Any) -> Any:
    return text(0.0 if decibels == 200 else (70 - decibels) / 40)


@pytest.fixture
def measured() -> Any:
    return record_of(
        **{f"tiny-dit:{steps}": list(case_rows(picture, steps=steps)) for steps in (50, 100, 20)},
        **{"small-llada:64": list(case_rows(nats, steps=64))},
    )


def section(tables: Any, title: Any) -> Any:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", tables, re.S | re.M)
    assert found is not None
    return found[1]


def lines(tables: Any, policy: Any) -> Any:
    """Cells of each row of a way."""
    found = [line.strip("| ").split(" | ") for line in tables.splitlines() if line.startswith("|")]
    return [cells for cells in found if cells[0].strip("*") == policy]


def test_every_way_is_there_once_for_each_budget_as_the_mean_over_seeds(measured: Any) -> None:
    tables = frontier_tables(measured)
    for steps in (20, 50, 100):
        part = section(tables, f"tiny-dit, {steps} steps")
        assert "`python -m benchmarks.frontier` at abc, torch 2, a chip, now. 2 seeds of 8 samples." in part
        for policy, _ in WAYS:
            assert len(lines(part, policy)) == len(BUDGETS)
        assert len(lines(part, "full")) == len(lines(part, "anchors, early")) == 1
    half = lines(section(tables, "tiny-dit, 50 steps"), "plain refresh, linear")[0]
    assert half == ["plain refresh, linear", "50.0%", "50.0%", "2.00×", "39.5 ± 2.0", "0.0100"]
    assert "equal" in lines(tables, "full")[0]


def test_a_single_picture_has_no_interval() -> None:
    alone = {"psnr": 34.5, "psnr_low": 34.5, "psnr_high": 34.5, "lpips": 0.01}
    assert "**34.5**" in lines(frontier_tables(record_of(case=[row("tenuto", "ours", 0.25, 0, **alone)])), "tenuto")[0]


def test_one_slow_run_of_three_is_no_slow_way() -> None:
    rows = [row("tenuto", "ours", 0.25, seed, **picture(40.0)) for seed in range(3)]
    rows[1].seconds = 3.0
    assert lines(frontier_tables(record_of(case=rows)), "tenuto")[0][3] == "**4.00×**"


def test_ours_is_bold_and_comes_after_the_full_run_most_work_first(measured: Any) -> None:
    part = section(frontier_tables(measured), "tiny-dit, 50 steps")
    ways = [line.split(" | ")[0].strip("| ") for line in part.splitlines() if line.startswith("|")][2:]
    assert ways[:4] == ["full", "**tenuto**", "**tenuto**", "plain refresh, linear"]
    assert ways[-1] == "lifetimes (the paper)"
    assert [cells[1] for cells in lines(part, "tenuto")] == ["**50.0%**", "**25.0%**"]
    assert part.count("**") == 2 * 2 * 6  # of two rows, every cell, and nothing else


def test_columns_that_nobody_has_are_left_out(measured: Any) -> None:
    tables = frontier_tables(measured)
    titles = [line for line in tables.splitlines() if line.startswith("| way")]
    assert titles[0] == "| way | work | FLOPs | over full | dB to full | perceptual |"
    assert titles[-1] == "| way | work | FLOPs | over full | Δ nats a token | same tokens | needle |"
    assert "## small-llada, 64 steps, ddim" in tables  # of text, the setting, too


def test_a_difference_that_may_be_nothing_is_marked() -> None:
    delta = {"fid_delta_low": -0.2, "fid_delta_high": 0.5}
    some = [
        row("full", "full", 1.0, 0, **picture(200.0), fid=11.8, fid_delta=0.0, fid_delta_low=0.0, fid_delta_high=0.0),
        row("tenuto", "ours", 0.5, 0, **picture(40.0), fid=12.0, fid_delta=0.2, **delta),
        row("far", "rival", 0.5, 0, **picture(20.0), fid=19.0, fid_delta=7.2, fid_delta_low=6.0, fid_delta_high=8.0),
    ]
    tables = frontier_tables(record_of(**{"tiny-dit:50": some}))
    assert "**+0.20 [-0.20, +0.50] ·**" in tables
    assert "| +7.20 [+6.00, +8.00] |" in tables
    assert "| FID 11.80 |" in tables


def test_comparisons_and_converged_outputs_are_told(measured: Any) -> None:
    one = Comparison("tiny-dit", 50, "tenuto at 0.5", "fewer steps at 0.5", "psnr", 3.0, 2.0, 4.0, 0.0001)
    measured["comparisons"] = [{"case": "tiny-dit:50", **one.to_json()}]
    measured["cases"]["tiny-dit:50"]["converged"] = {"250 and 500 steps": 31.0, "500 and 1000 steps": 32.5}
    tables = frontier_tables(measured)
    assert "| tenuto at 0.5 | fewer steps at 0.5 | +3.00 dB | [+2.00, +4.00] | < 0.001 |" in tables
    assert "of 500 and 1000 steps to 32.5 dB; too little" in tables
    assert tables.count("| a | b |") == 1


def test_pictures_are_drawn_of_pictures_and_of_text(measured: Any, tmp_path: Path) -> None:
    for model, least in (("tiny-dit", 900), ("small-llada", 500)):
        path = tmp_path / f"{model}.png"
        frontier_picture(measured, model, path)
        with Image.open(path) as image:
            assert image.format == "PNG" and image.width >= 1400 and image.height >= least
            assert "python -m benchmarks.frontier" in image.info["Description"]
            assert len(image.convert("RGB").getcolors(1 << 20) or ()) > 100  # not an empty sheet


def test_a_case_that_nothing_was_judged_of_has_a_table_and_no_picture(tmp_path: Path) -> None:
    record = record_of(**{"tiny-dit:50": [row("full", "full", 1.0, 0), row("tenuto", "ours", 0.5, 0)]})
    assert len(lines(frontier_tables(record), "tenuto")) == 1
    frontier_picture(record, "tiny-dit", tmp_path / "none.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("record", [{}, {"cases": {}, "rows": [], "comparisons": []}])
def test_nothing_measured_is_nothing_told(record: Any, tmp_path: Path) -> None:
    assert frontier_tables(record) == ""
    frontier_picture(record, "tiny-dit", tmp_path / "none.png")
    assert not list(tmp_path.iterdir())


def test_a_page_has_the_same_cells_as_the_markdown(measured: Any) -> None:
    tables = page_tables(measured)
    assert tables[0].title == "tiny-dit, 50 steps"
    rows = [line for line in frontier_tables(measured).splitlines() if line.startswith("| ") and "| way" not in line]
    cells = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in rows]
    assert [list(row) for table in tables for row in table.rows] == cells


def test_a_frontier_becomes_one_self_contained_page(
    measured: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tenuto.cli import main

    path = tmp_path / "frontier" / "frontier.json"
    path.parent.mkdir()
    path.write_text(json.dumps(measured))
    assert models_of(known_frontier(tmp_path) or {}) == ["tiny-dit", "small-llada"]

    def show(*options: Any) -> Any:
        monkeypatch.setattr(sys, "argv", ["tenuto", "lab", "show", str(path), *map(str, options)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr()

    status, captured = show("--html", tmp_path / "page.html")
    assert status == 0 and "# Quality against work and time" in captured.out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2 and "<script" not in page and "small-llada, 64 steps" in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    status, captured = show("--png", tmp_path / "one.png")
    assert status == 2 and "--html has all" in captured.err


def test_nothing_known_is_no_picture(measured: Any, tmp_path: Path) -> None:
    assert known_frontier(tmp_path) is None
    assert frontier_image({}, "tiny-dit") is None and frontier_image(measured, "another") is None
    image = frontier_image(measured, "tiny-dit")
    assert image is not None and image.width > 1000
