"""The paper's experiments: what is compared is paired, what is noted is not measured twice, claims are counted."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tenuto
from tenuto.errors import UsageError
from tenuto.journal import Journal
from tenuto.models import Model, llada
from tenuto.models.llada import LLaDA
from tenuto.runtime.executor import Executor
from tenuto.showing.images import grid, png_bytes
from tenuto_lab.candidates.ranked_lifetimes import STATISTICS
from tenuto_lab.cli import app
from tenuto_lab.frontier.points import everything
from tenuto_lab.paper import EXPERIMENTS, ClaimRow, Lab
from tenuto_lab.paper import failures as failing
from tenuto_lab.paper.experiment_report import draw, experiment_table, results_page, verdict
from tenuto_lab.paper.experiment_results import Figure, Panel, spread
from tenuto_lab.paper.static_rankings import NAMES, PAPER, ranked_way, refreshed_way
from tenuto_lab.paper.trials import PictureBench, TextBench, Trial, difference
from tenuto_lab.paper.ways import in_full, ours, quality_rows, relative, spectral, tried
from tenuto_lab.rivals import ActivationDrift
from tests.conftest import random_dit, write_checkpoint
from tests.models.test_llada import TINY as LLADA

STEPS = 6


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return str(write_checkpoint(tmp_path_factory.mktemp("model") / "toy", random_dit()))


@pytest.fixture
def lab(checkpoint: Any) -> Any:
    return Lab((checkpoint,), samples=2, seeds=2, steps=STEPS)


@pytest.fixture
def bench(lab: Any, checkpoint: Any) -> Any:
    return lab.bench(checkpoint)


def test_the_full_run_equals_itself(bench: Any) -> None:
    trial = bench.trial(in_full(bench), STEPS)
    assert trial.values["psnr"] == [200.0] * 4  # two samples of two seeds
    assert trial.work == trial.flop_work == 1


def test_seeds_draw_other_pictures(bench: Any) -> None:
    (first, second), _ = bench.full(STEPS)
    assert not torch.equal(first, second)


def test_a_trial_counts_its_work_of_the_full_run_it_is_compared_with(bench: Any) -> None:
    half = bench.trial(in_full(bench), STEPS // 2, STEPS)
    assert half.work == 0.5
    assert bench.trial(spectral(bench, 0.5), STEPS).work == pytest.approx(0.5, abs=0.1)


def test_a_difference_is_taken_sample_by_sample() -> None:
    a, b = (Trial(1.0, 2.0, 0.5, 0.5, {"psnr": values}) for values in ([3.0, 4.0, 5.0], [1.0, 2.0, 3.0]))
    (mean, low, high), p = difference(a, b, "psnr")
    assert (mean, low, high) == (2.0, 2.0, 2.0) and p < 0.5
    assert a.speedup == 2


def test_what_was_noted_is_not_measured_again(lab: Any, bench: Any, tmp_path: Path) -> None:
    lab.journal = Journal(tmp_path / "notes", {"job": 1})
    first = tried(lab, bench, "full", in_full(bench))
    bench.trial = None  # would fail if it were called
    assert tried(lab, bench, "full", in_full(bench)) == first
    again = Lab(lab.models, lab.samples, lab.seeds, lab.steps, journal=Journal(tmp_path / "notes", {"job": 1}))
    assert tried(again, bench, "full", in_full(bench)) == first
    more = Lab(lab.models, 3, lab.seeds, lab.steps, journal=lab.journal)
    with pytest.raises(TypeError):  # of other samples nothing is known
        tried(more, bench, "full", in_full(bench))


def schedule_of(executor: Executor) -> tenuto.Schedule:
    assert executor.schedule is not None
    return executor.schedule


def test_rankings_differ_in_order_only(bench: Any) -> None:
    schedules = {name: schedule_of(ranked_way(bench, name, 0.5)(STEPS, 1)) for name in NAMES}
    assert len({tuple(sorted(one.lifetimes)) for one in schedules.values()}) == 1
    assert len({one.lifetimes for one in schedules.values()}) > 2
    assert all(len(values) == len(NAMES) for values in PAPER.values())
    assert set(NAMES.values()) == set(STATISTICS)


def test_a_ranking_says_who_is_refreshed_once_more(bench: Any) -> None:
    up, down = (schedule_of(refreshed_way(bench, "depth", sign)(8, 1)) for sign in (1, -1))
    assert up.budget == pytest.approx(down.budget, abs=0.15)
    assert not np.array_equal(up.active, down.active)
    assert up.fingerprint == bench.scores.fingerprint


def test_a_claim_holds_unless_the_interval_excludes_it(bench: Any) -> None:
    trial = Trial(1.0, 2.0, 0.5, 0.5, {"psnr": [30.0]}, {"fid_delta": (1.0, 0.4, 1.6), "full_fid": (10.0, 9.0, 11.0)})
    row = quality_rows(bench, "way", trial, trial, {"fid": 0.05})[0]
    assert (row.measured, row.interval, row.holds) == (0.1, (0.04, 0.16), True)
    assert quality_rows(bench, "way", trial, trial, {"fid": 0.03})[0].holds is False
    assert quality_rows(bench, "way", trial, trial, {"fid": 0.03}, claims=False)[0].holds is None
    assert relative((1.0, 0.0, 2.0), 4.0) == (0.25, 0.0, 0.5)


def test_verdicts_count() -> None:
    rows = [ClaimRow("q", "m", 1.0, 2.0, holds=holds) for holds in (True, False, None)]
    told = [verdict({"rows": [row.to_json() for row in some], "finding": "So."}) for some in (rows, rows[:1], rows[1:])]
    assert told[0] == "The claim holds here in 1 of 2 comparisons. So."
    assert told[1] == "The claim holds here (1 of 1 comparisons). So."
    assert told[2] == "The claim does not hold here (in 0 of 1 comparisons). So."
    assert verdict({"rows": [], "finding": ""}) == "Nothing here can be held against the paper."
    assert spread(rows, "q") == "2" and spread(rows, "other") == "nothing measured"


def test_fine_texture_is_what_changes_from_pixel_to_pixel() -> None:
    smooth = torch.linspace(-1, 1, 16).expand(1, 1, 16, 16)
    checked = ((torch.arange(16)[:, None] + torch.arange(16)) % 2).float()[None, None]
    assert failing._texture(checked) > 10 * failing._texture(smooth)
    assert failing._carries("Tom has 17 cups and finds 5 more. How many?")
    assert not failing._carries("Tom has 12 cups and finds 5 more. How many?")
    assert failing._carries("Rose has 64 cups and loses 39. How many?")


@pytest.mark.parametrize("name", ["operating-points", "maps", "comparisons", "freeze-error"])
def test_an_experiment_writes_rows_a_table_and_its_figure(name: str, checkpoint: Any, tmp_path: Path) -> None:
    pytest.importorskip("statsmodels")
    arguments = [
        "--checkpoint",
        checkpoint,
        "--samples",
        "2",
        "--seeds",
        "1",
        "--steps",
        "6",
        "-o",
        str(tmp_path),
        "--json",
    ]
    done = CliRunner().invoke(app, ["experiment", name, *arguments])
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / f"{name}.json").read_text())
    assert {"provenance", "claim", "finding", "rows"} <= set(record)
    assert all({"quantity", "model", "paper", "measured", "interval", "holds"} <= set(row) for row in record["rows"])
    assert record["rows"] and record["provenance"]["seeds"] == 1
    assert experiment_table(record) == (tmp_path / f"{name}.md").read_text()
    assert (tmp_path / f"{name}.png").exists() == (record["figure"] is not None)
    assert not (tmp_path / ".trials.jsonl").exists()


def test_an_interrupted_one_goes_on_where_it_stopped(
    checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--checkpoint", checkpoint, "--samples", "2", "--seeds", "1", "--steps", "6", "-o", str(tmp_path)]
    trials = []
    whole = PictureBench.trial

    def counted(self: Any, *given: Any) -> Any:
        trials.append(given)
        if len(trials) == 3:
            raise KeyboardInterrupt
        return whole(self, *given)

    monkeypatch.setattr(PictureBench, "trial", counted)
    assert CliRunner().invoke(app, ["experiment", "operating-points", *arguments]).exit_code != 0
    assert (tmp_path / ".trials.jsonl").exists() and not (tmp_path / "operating-points.json").exists()
    done = CliRunner().invoke(app, ["experiment", "operating-points", "--resume", *arguments])
    assert done.exit_code == 0, done.output
    assert len(trials) == 3 + 2  # the third again, and the fourth


def test_the_page_has_every_experiment_that_was_done(checkpoint: Any, tmp_path: Path) -> None:
    arguments = ["--checkpoint", checkpoint, "--samples", "1", "--seeds", "1", "--steps", "6", "-o", str(tmp_path)]
    assert CliRunner().invoke(app, ["experiment", "maps", *arguments]).exit_code == 0
    page, html = tmp_path / "docs" / "page.md", tmp_path / "page.html"
    page.parent.mkdir()
    done = CliRunner().invoke(app, ["results", str(tmp_path), "-o", str(page), "--html", str(html)])
    assert done.exit_code == 0, done.output
    assert "## Lifetime maps" in page.read_text() and "../maps.png" in page.read_text()
    assert "data:image/png" in html.read_text()
    empty = CliRunner().invoke(app, ["results", str(tmp_path / "nothing")])
    assert empty.exit_code != 0


def test_experiments_on_text_say_what_they_lack(checkpoint: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is for language models, and .*toy draws"):
        Lab((checkpoint,), 1, 1).writers()
    writer = Model(str(tmp_path), llada.ARCHITECTURE, LLADA, (), llada.units(LLADA), LLaDA(LLADA))
    with pytest.raises(UsageError, match="no problems.json beside"):
        TextBench(writer, 1, [0])


def test_unknown_experiments_are_named(checkpoint: Any) -> None:
    from tenuto_lab.cli.experiment import experiment

    with pytest.raises(UsageError, match="no experiment 'ranking'"):
        experiment("ranking")
    assert len(EXPERIMENTS) >= 14
    assert all(
        one.title.isascii() for one in EXPERIMENTS.values()
    )  # else pages disagree on what their headings are called


def test_every_kind_of_figure_can_be_drawn(tmp_path: Path) -> None:
    series: dict[str, dict[str, Any]] = {
        "lines": {"a": [(0.1, 1.0), (0.5, 2.0)]},
        "bars": {"a": [("one", 1.0), ("two", 2.0)], "b": [("one", 2.0), ("two", 1.0)]},
        "scatter": {"attention": [(0.1, 1.0)]},
        "map": {"lifetimes": [3, 4], "kinds": ["attention", "mlp"], "steps": 5},
        "pictures": {"full": b64encode(png_bytes(grid(torch.zeros(2, 1, 4, 4), 2))).decode()},
    }
    for kind, some in series.items():
        draw({"figure": Figure(kind, [Panel("toy", some)]).to_json()}, tmp_path / f"{kind}.png")
        assert (tmp_path / f"{kind}.png").stat().st_size > 1000


def test_the_default_is_tried_beside_the_paper(bench: Any) -> None:
    assert schedule_of(ours(bench, 0.5)(STEPS, 1)).policy["name"] == "refresh"


def test_a_page_of_one_record_links_its_table() -> None:
    record = {
        "name": "maps",
        "title": "Lifetime maps",
        "claim": "c",
        "where": "w",
        "finding": "v.",
        "limits": "",
        "figure": None,
        "rows": [ClaimRow("q", "m", 1.0, 2.0, (1.0, 3.0), True).to_json()],
        "provenance": {"command": "x", "commit": "y", "hardware": "z", "samples": 1, "seeds": 1},
    }
    page = results_page([record], "../results/experiments")
    assert "(../results/experiments/maps.md)" in page and "| m | q | 1 | 2 | 1 to 3 | yes |" in page


def test_text_is_tried_by_whatever_runs_it() -> None:
    bench = Lab(("tiny-llada",), 1, 1).bench("tiny-llada")
    network, scores = bench.model.network, bench.scores
    drift = bench.trial(lambda steps, blocks: ActivationDrift(network, everything(scores, steps)), 4)
    assert drift.work == 1 and drift.values["same tokens"] == [1.0]
    assert {"arithmetic", "needle", "needle, longest", "distinct"} <= set(drift.values)
