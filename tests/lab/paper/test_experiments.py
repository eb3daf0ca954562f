"""The paper's experiments: what is compared is paired, what is noted is not measured twice, claims are counted."""

import json
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tenuto
from tenuto.errors import UsageError
from tenuto.files import write_json
from tenuto.models import Model, llada
from tenuto.models.llada import LLaDA
from tenuto.runtime.executor import Executor
from tenuto.showing.images import grid, png_bytes
from tenuto_lab.candidates.ranked_lifetimes import STATISTICS
from tenuto_lab.cli import app
from tenuto_lab.cli.experiment import _progress, _provenance
from tenuto_lab.frontier.points import everything
from tenuto_lab.journal import Journal
from tenuto_lab.paper import EXPERIMENTS, ClaimRow, Lab, conditions, drift_control
from tenuto_lab.paper import failures as failing
from tenuto_lab.paper import freezing as tuning_task
from tenuto_lab.paper import static_rankings as ranking
from tenuto_lab.paper.drawing_bench import PictureBench
from tenuto_lab.paper.experiment_figures import draw
from tenuto_lab.paper.experiment_report import HEAD, cells, experiment_table, verdict
from tenuto_lab.paper.experiment_results import Figure, Panel, judged, spread
from tenuto_lab.paper.results_page import results_page, running
from tenuto_lab.paper.smallest import options_of, read_smallest
from tenuto_lab.paper.static_rankings import NAMES, PAPER, ranked_way, refreshed_way
from tenuto_lab.paper.trials import Trial, difference, fid_gain
from tenuto_lab.paper.ways import (
    comparison,
    in_full,
    joined,
    ours,
    quality_rows,
    relative,
    share_of_steps,
    spectral,
    tried,
)
from tenuto_lab.paper.writing_bench import TextBench
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


@pytest.mark.parametrize("granularity", ["branch", "block"])
def test_rankings_differ_in_order_only(bench: Any, granularity: Any) -> None:
    counted = bench.at(granularity)
    schedules = {name: schedule_of(ranked_way(counted, name, 0.5)(40, 1)) for name in NAMES}
    assert len({tuple(sorted(one.lifetimes)) for one in schedules.values()}) == 1
    assert len({one.lifetimes for one in schedules.values()}) > 2
    assert all(len(values) == len(NAMES) for values in PAPER.values())
    assert set(NAMES.values()) == set(STATISTICS)
    if granularity == "block":  # the branches of a block share a lifetime in every order
        assert all(one.lifetimes[i] == one.lifetimes[i + 1] for one in schedules.values() for i in (0, 2, 4))


def test_random_orders_differ_and_every_experiment_takes_the_same(lab: Any, bench: Any) -> None:
    lab.say = (said := []).append
    found = ranking.ranked(lab, bench, "random", 0.5, STEPS)
    orders = {schedule_of(ranked_way(bench, "random", 0.5, seed=seed)(40, 1)).lifetimes for seed in range(10)}
    assert len(found) == lab.orders == 10 and len(orders) > 5
    assert sum("random at 0.5, order" in line for line in said) == lab.orders


def test_a_ranking_says_who_is_refreshed_once_more(bench: Any) -> None:
    up, down = (schedule_of(refreshed_way(bench, "depth", sign)(8, 1)) for sign in (1, -1))
    assert up.budget == pytest.approx(down.budget, abs=0.15)
    assert not np.array_equal(up.active, down.active)
    assert up.fingerprint == bench.scores.fingerprint


def drawn(fid: float, draws: list[float], psnr: list[float]) -> Trial:
    figures = {
        "fid": (fid, fid - 1, fid + 1),
        "full_fid": (10.0, 9.0, 11.0),
        "fid_delta": (fid - 10, fid - 11, fid - 9),
    }
    return Trial(1.0, 2.0, 0.5, 0.5, {"psnr": psnr}, figures, {"fid": draws})


def test_fids_are_compared_resample_by_resample() -> None:
    """The resamples of both rise and fall together, so their difference is far more certain than either."""
    noise = np.linspace(-5, 5, 50)
    a, b = drawn(20.0, (20 + noise).tolist(), [30.0]), drawn(21.0, (21 + noise + 0.01 * noise).tolist(), [30.0])
    gain = fid_gain(a, b)
    assert gain is not None and gain[0] == pytest.approx(0.1) and 0.08 < gain[1] < gain[2] < 0.12
    assert fid_gain(a, Trial(1.0, 1.0, 1.0, 1.0, {})) is None


def test_the_papers_metric_decides_and_nearness_stands_beside_it(bench: Any) -> None:
    """The first has the lower FID, and is further from the full run."""
    noise = np.linspace(-1, 1, 50)
    a = drawn(20.0, (20 + noise).tolist(), [10.0, 10.1, 10.0, 10.2] * 4)
    b = drawn(40.0, (40 - noise).tolist(), [12.0, 12.2, 12.1, 12.1] * 4)
    (row,) = judged([comparison(bench, "one", "other", (a, b), paper=0.5)])
    assert row.holds == "yes" and row.measured == pytest.approx(2.0)
    assert row.nearness is not None and row.nearness.holds == "no" and row.nearness.unit == "dB"
    assert row.said == "1.14 FID" and row.granularity == "branch"
    (row,) = judged([comparison(bench, "one", "other", (a, b), "alike", margin=0.1)])
    assert row.holds == "no"
    no_fid = [Trial(1.0, 2.0, 0.5, 0.5, {"psnr": one.values["psnr"]}) for one in (a, b)]
    (row,) = judged([comparison(bench, "one", "other", (no_fid[0], no_fid[1]))])
    assert row.holds == "cannot tell" and "FID was not measured" in row.note


def test_several_orders_widen_the_interval() -> None:
    alone, _ = joined([((1.0, 0.9, 1.1), 0.01)])
    assert alone == (1.0, 0.9, 1.1)
    (mean, low, high), _ = joined([((1.0, 0.9, 1.1), None), ((3.0, 2.9, 3.1), None)])
    assert mean == 2.0 and high - low > 1.0


def test_no_more_may_be_lost_than_the_paper_lost(bench: Any) -> None:
    trial = drawn(11.0, [11.0] * 4, [30.0])
    trial.figures["fid_delta"] = (1.0, 0.9, 1.1)
    for claimed, holds in ((0.5, "yes"), (0.01, "no"), (0.1001, "cannot tell")):
        row = judged(quality_rows(bench, "way", trial, trial, {"fid": claimed}))[0]
        assert row.measured == 0.1 and row.interval == pytest.approx((0.09, 0.11)) and row.holds == holds
    assert quality_rows(bench, "way", trial, trial, {"fid": 0.03}, claims=False)[0].evidence is None
    assert relative((1.0, 0.0, 2.0), 4.0) == (0.25, 0.0, 0.5)


def test_blocks_are_counted_once_each(bench: Any) -> None:
    blocks = bench.at("block")
    made = schedule_of(spectral(blocks, 0.5)(20, 1))
    assert share_of_steps(blocks, made) == pytest.approx(np.mean(made.lifetimes[::2]) / 20)
    assert bench.granularity == "branch" and blocks._full is bench._full  # full runs are shared


def test_verdicts_count() -> None:
    rows = [ClaimRow("q", "m", 1.0, 2.0, holds=holds) for holds in ("yes", "no", "cannot tell", None)]
    told = [verdict({"rows": [row.to_json() for row in some], "finding": "So."}) for some in (rows, rows[:1])]
    assert told[0] == "1 of 3 comparisons holds, 1 does not, 1 cannot be told. So."
    assert told[1] == "1 of 1 comparison holds, 0 do not, 0 cannot be told. So."
    assert verdict({"rows": [], "finding": ""}) == "Nothing here can be compared with the paper."
    assert spread(rows, "q") == "2" and spread(rows, "other") == "nothing measured"


def test_fine_texture_is_what_changes_from_pixel_to_pixel() -> None:
    smooth = torch.linspace(-1, 1, 16).expand(1, 1, 16, 16)
    checked = ((torch.arange(16)[:, None] + torch.arange(16)) % 2).float()[None, None]
    assert failing._texture(checked) > 10 * failing._texture(smooth)
    assert failing._carries("Tom has 17 cups and finds 5 more. How many?")
    assert not failing._carries("Tom has 12 cups and finds 5 more. How many?")
    assert failing._carries("Rose has 64 cups and loses 39. How many?")
    assert failing._carries("add: 86218 + 73735 =") and not failing._carries("add: 86218 + 73731 =")


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_experiment_writes_rows_a_table_and_its_figure(
    name: str, checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command line to the files, at the smallest size."""
    for constant, value in (("BATCH", 2), ("ASKED", 2), ("TIMED", 1)):
        monkeypatch.setattr(tuning_task, constant, value)
    text = EXPERIMENTS[name].models == ("small-llada",)
    model = ["--model", "small-llada", "--seeds", "1"] if text else ["--checkpoint", checkpoint, "--seeds", "2"]
    samples, steps = (1, 4) if text else (2, 8)
    arguments = [*model, "--samples", str(samples), "--steps", str(steps), "-o", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, ["experiment", name, *arguments, "--orders", "2"])
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / f"{name}.json").read_text())
    assert {"provenance", "claim", "finding", "rows"} <= set(record)
    assert all({"quantity", "model", "paper", "measured", "interval", "holds"} <= set(row) for row in record["rows"])
    assert record["rows"] and (record["provenance"]["samples"], record["provenance"]["steps"]) == (samples, steps)
    assert {row["holds"] for row in record["rows"]} <= {"yes", "no", "cannot tell", None}
    assert experiment_table(record) == (tmp_path / f"{name}.md").read_text()
    assert (tmp_path / f"{name}.png").exists() == (record["figure"] is not None)
    assert not (tmp_path / ".trials.jsonl").exists()
    counted = {row.get("granularity") for row in record["rows"]} - {None}
    assert counted <= set(EXPERIMENTS[name].granularities) or name == "audit"


def test_steps_that_text_cannot_share_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["experiment", "maps", "rankings", "--steps", "10", "-o", str(tmp_path)])
    assert isinstance(done.exception, UsageError) and "take --steps 8 or 12" in str(done.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["operating-points", "pareto", "oracle", "audit", "freeze-error", "bounds"])
def test_as_many_trials_as_foretold(name: str, checkpoint: Any) -> None:
    """The time left is told from this number."""
    one = EXPERIMENTS[name]
    lab = Lab((checkpoint,), samples=2, seeds=1, steps=6, granularities=one.granularities)
    one.run(lab)
    foretold = one.trials(lab) * len(one.granularities)
    assert foretold == pytest.approx(len(lab.seen), abs=3) and len(lab.took) >= len(lab.seen)


def test_the_time_left_is_told_without_a_terminal(checkpoint: Any, tmp_path: Path) -> None:
    arguments = ["--checkpoint", checkpoint, "--samples", "1", "--seeds", "1", "--steps", "6", "-o", str(tmp_path)]
    done = CliRunner().invoke(app, ["experiment", "operating-points", "--granularity", "block", *arguments])
    lines = [line for line in done.output.splitlines() if line.startswith("[")]
    assert "here about 4 trials" in done.output and "left]" in lines[1] and "left]" not in lines[-1]
    assert _progress(Lab(took=[1800.0, 1800.0], seen={"a", "b"}), 4, 3600.0) == "1 h 0 min, about 1 h 0 min left"
    assert _progress(Lab(took=[61.0], seen={"a"}), 1, 61.0) == "1:01"
    assert _progress(Lab(took=[1.0, 100.0], seen={"a", "b"}), 4, 101.0) == "1:41, about 3:20 left", (
        "a probe is no trial"
    )


def test_a_long_trial_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(("tiny-dit",), 4, 2, 4, say=(said := []).append)
    monkeypatch.setattr(conditions, "OFTEN", 0.0)
    bench: Any = lab.bench("tiny-dit")
    bench.batch = 2
    bench.trial(in_full(bench), 4)
    assert {f"… {done} of 8 pictures" for done in (2, 4, 6, 8)} <= set(said)


def test_the_seconds_of_a_resumed_run_are_called_those_of_its_last_part() -> None:
    one = EXPERIMENTS["maps"]
    made = [_provenance(one, lab, 5) for lab in (Lab(took=[1.0], seen={"a"}), Lab(took=[1.0], seen={"a", "b"}))]
    assert made[0]["seconds"] == 5 and "seconds" not in made[1] and made[1]["seconds_of_the_last_part"] == 5


def test_too_few_pictures_for_an_fid_are_named_once_before_the_first_trial(bench: Any) -> None:
    none = {"distance": lambda images: None, "value": lambda images: None}
    judge: Any = SimpleNamespace(name="some features", least=5, enough=9, **none)
    said: list[str] = []
    few = PictureBench(bench.model, 2, range(2), [0, 1], judge)
    lab = Lab((few.model.name,), 2, 2, STEPS, say=lambda text: said.append(text))
    for name in ("full", "again"):
        tried(lab, few, name, in_full(few))
    assert "4 pictures are too few for an FID in some features; 5 are enough" in said[0]
    assert sum("too few" in text for text in said) == 1
    assert (
        "with each other only; for published ones take at least 9"
        in PictureBench(bench.model, 5, range(1), [0] * 5, judge).lacks
    )
    assert not PictureBench(bench.model, 9, range(1), [0] * 9, judge).lacks and not bench.lacks


def test_steps_and_samples_are_what_was_asked_for(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Audit, freeze errors and oracle take as many steps and samples as they are told, and not fewer."""
    from tenuto_lab.paper import oracle, score_validity

    seen: dict[str, list[Any]] = {"audit": [], "freeze": [], "oracle": []}
    audit, freeze, search = score_validity.audit, score_validity.freeze_errors, oracle.oracle_replay

    def watched(kind: str, whole: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            found = whole(*given, **named)
            seen[kind].append(len(given[1]) if kind == "oracle" else getattr(found, "trajectories", given[1]))
            return found

        return call

    monkeypatch.setattr(score_validity, "audit", watched("audit", audit))
    monkeypatch.setattr(score_validity, "freeze_errors", watched("freeze", freeze))
    monkeypatch.setattr(oracle, "oracle_replay", watched("oracle", search))
    lab = Lab((checkpoint,), samples=3, seeds=1, steps=25)
    EXPERIMENTS["audit"].run(lab)
    assert seen["audit"] == [6]  # three samples, both halves of guidance
    EXPERIMENTS["freeze-error"].run(lab)
    assert seen["freeze"][0][0] == round(0.35 * 25)
    EXPERIMENTS["oracle"].run(Lab((checkpoint,), samples=2, seeds=1, steps=12))
    assert seen["oracle"] == [12] * 4  # two inputs, with and without a ceiling


def test_a_run_stops_in_time_and_goes_on(checkpoint: Any, tmp_path: Path) -> None:
    arguments = ["--checkpoint", checkpoint, "--samples", "1", "--seeds", "1", "--steps", "6", "-o", str(tmp_path)]
    first = CliRunner().invoke(app, ["experiment", "maps", "pareto", *arguments, "--minutes", "0.01"])
    calls = 1
    while first.exit_code == 75 and calls < 30:
        assert (tmp_path / ".trials.jsonl").exists()
        first = CliRunner().invoke(app, ["experiment", "maps", "pareto", *arguments, "--minutes", "0.01", "--resume"])
        calls += 1
    assert first.exit_code == 0, first.output
    assert {path.name for path in tmp_path.glob("*.json")} == {"maps.json", "pareto.json"}


def test_single_samples_are_taken_from_those_a_writer_has() -> None:
    protocol = conditions.Protocol(tasks=("sums-5",))
    lab = Lab(("small-llada",), samples=50, text_samples=1, seeds=1, steps=4, protocol=protocol)
    row = drift_control._known_row(lab, lab.bench("small-llada"), 0.5)
    assert row.measured is not None and 0 <= row.measured <= 1


def test_problems_are_not_asked_twice() -> None:
    with pytest.raises(UsageError, match="has 46 different problems of the kind .* Take --samples 4 at most"):
        Lab(("small-llada",), samples=5, seeds=10).bench("small-llada")


def test_a_table_fits_a_hundred_columns(checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from tenuto.cli import console

    monkeypatch.setattr(console, "out", console.SafeConsole(width=100, highlight=False, record=True))
    monkeypatch.setattr(Console, "is_terminal", False)
    row = ClaimRow(
        "SCR/Frobenius against Frobenius x stable rank: FID lower by, share", "tiny-sdxl", 0.2, 16.5, (-0.00123, 33.0)
    ).to_json()
    row |= {"holds": "cannot tell", "said": "FID 3.15", "granularity": "branch"}
    row |= {"nearness": {"measured": 0.487, "unit": "equal tokens", "holds": "cannot tell"}}
    record = {"title": "t", "where": "w", "claim": "c", "finding": "f", "rows": [row]}
    from tenuto_lab.cli.experiment import _tell

    _tell(record)
    text = console.out.export_text()
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "…" not in text and all(word in text for word in ("16.5", "cannot", "tiny-sdxl", "-0.00123", "tokens"))
    assert len(text.splitlines()) < 12, "one row takes few lines"


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
    assert len(trials) == 3 + 4  # the third again, and those that were never tried


def test_the_page_has_every_experiment_that_was_done(checkpoint: Any, tmp_path: Path) -> None:
    arguments = ["--checkpoint", checkpoint, "--samples", "1", "--seeds", "1", "--steps", "6", "-o", str(tmp_path)]
    assert CliRunner().invoke(app, ["experiment", "maps", *arguments]).exit_code == 0
    page, html = tmp_path / "docs" / "page.md", tmp_path / "page.html"
    page.parent.mkdir()
    done = CliRunner().invoke(app, ["results", str(tmp_path), "-o", str(page), "--html", str(html)])
    assert done.exit_code == 0, done.output
    assert "## Lifetime maps" in page.read_text() and "../maps.png" in page.read_text()
    assert "Not run yet: operating-points" in page.read_text()
    text, shown = page.read_text(), html.read_text()  # in both, the verdicts come before everything else
    assert text.index("| the abstract says") < text.index("\n## ") and shown.index(">verdict<") < shown.index("<img")
    empty = CliRunner().invoke(app, ["results", str(tmp_path / "nothing")])
    assert empty.exit_code != 0


def test_experiments_on_text_say_what_they_lack(checkpoint: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is for language models, and .*toy draws"):
        Lab((checkpoint,), 1, 1).writers()
    writer = Model(str(tmp_path), llada.ARCHITECTURE, LLADA, (), llada.units(LLADA), LLaDA(LLADA))
    with pytest.raises(UsageError, match="no problems.json beside"):
        TextBench(writer, 1, range(1))


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
        "rows": [ClaimRow("q", "m", 1.0, 2.0, (1.0, 3.0), "yes").to_json()],
        "provenance": {"command": "x", "commit": "y", "hardware": "z", "samples": 1, "seeds": 1},
    }
    page = results_page([record], "../results/experiments")
    assert "*The paper (Figures 2 and 5, Table 17):*" in page  # an older record numbers them otherwise
    assert "(../results/experiments/maps.md)" in page and "| m | q | 1 | 2 | 1 to 3 | yes |" in page
    assert len(HEAD) == len(cells(record["rows"][0]))


def test_the_page_says_which_command_makes_which_table_and_how_long_it_takes(tmp_path: Path) -> None:
    made = {"command": "c", "commit": "d", "torch": "2", "hardware": "one core", "core_seconds": 31.4}
    write_json(tmp_path / "s.json", {"experiments": {"rankings": made}})
    lines = running(read_smallest(tmp_path / "s.json"))
    command = "`tenuto lab experiment rankings --device cuda`"
    assert f"| Table 5: static rankings at a matched budget | {command} | about 15 min | 31 s |" in lines
    assert sum(line.startswith("| ") and "`tenuto lab experiment" in line for line in lines) == len(EXPERIMENTS)
    assert "\n`c` at d, one core, torch 2." in lines
    assert options_of("rankings")[:2] == ("--model", "tiny-dit") and options_of("language")[1] == "small-llada"


def test_text_is_tried_by_whatever_runs_it() -> None:
    bench: Any = Lab(("small-llada",), 1, 1).bench("small-llada")
    network, scores = bench.model.network, bench.scores
    drift = bench.trial(lambda steps, blocks: ActivationDrift(network, everything(scores, steps)), 4)
    assert drift.work == 1 and drift.values["same tokens"] == [1.0] * len(bench.asked)
    assert {"all tasks", "sums-5", "codes-16", "distinct"} <= set(drift.values)
