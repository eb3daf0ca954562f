"""One screen for readers of the abstract: a claim about everything fails with one no, and is open with one doubt."""

from pathlib import Path
from typing import Any

import pytest

from scripts.rejudge import rows_of, widest
from scripts.restate import restated
from tenuto_lab.paper import EXPERIMENTS
from tenuto_lab.paper.abstract import (
    CLAIMS,
    HEAD,
    OLDER,
    TIMED,
    abstract_rows,
    as_the_paper_counts,
    by_model,
    models_table,
    verdict_of,
)
from tenuto_lab.paper.experiment_report import experiment_table
from tenuto_lab.paper.experiment_results import ClaimRow, read_experiment
from tenuto_lab.paper.results_page import (
    about_ladders,
    about_older,
    about_text,
    differs,
    found_again,
    results_page,
    retired_of,
    titled,
    without_repeats,
)
from tenuto_lab.paper.smallest import read_smallest
from tenuto_lab.paper.speeds import ladder_rows, mode_rows, runs_differ
from tenuto_lab.paper.ways import RUINED, SATURATED
from tenuto_lab.retired import CARD, RETIRED
from tenuto_lab.speed.ladder_report import read_ladder

ROOT = Path(__file__).parents[3]


def row(model: str, holds: Any, quantity: str = "SCR/Frobenius against depth: FID lower by") -> dict[str, Any]:
    return ClaimRow(quantity, model, None, 1.0, holds=holds).to_json()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (["yes", "yes"], "holds"),
        (["yes", "cannot tell"], "cannot tell"),
        (["yes", "no", "cannot tell"], "does not hold"),
        ([], "holds"),  # by construction: no row tests it
    ],
)
def test_a_claim_about_everything(said: list[Any], told: str) -> None:
    assert verdict_of([row("m", holds) for holds in said]) == told


def test_models_that_say_the_same_stand_together() -> None:
    assert by_model([row("a", "yes"), row("b", "no"), row("c", "yes")]) == "a, c: 1 yes; b: 1 no"


def record(name: str, rows: list[dict[str, Any]], **made: str) -> dict[str, Any]:
    return {"name": name, "title": name.title(), "rows": rows, "provenance": made}


def test_every_claim_has_a_line_and_an_experiment() -> None:
    """A reader of the abstract sees the paper's figure, ours, the verdict and the reason."""
    assert {claim.experiment for claim in CLAIMS} <= {*EXPERIMENTS, "ladder", "modes"}
    held = ClaimRow("held for good, depth: FID above full inference's", "tiny-dit", None, 9.0).to_json()
    rows = abstract_rows([record("rankings", [row("tiny-dit", "yes"), row("tiny-uvit", "no"), held])])
    assert len(rows) == len(CLAIMS) and all(len(one) == len(HEAD) for one in rows)
    (ranked,) = [one for one in rows if one[0].startswith("At equal work")]
    assert ranked[1:4] == ("better in 28 of 28 (Table 5)", "better in 1 of 2, worse in 1", "**does not hold**")
    assert "tiny-dit: 1 better; tiny-uvit: 1 worse; small-llada, tiny-sdxl not measured" in ranked[4]
    assert "every order raises the FID (× 10)" in ranked[4]
    assert ranked[4].endswith("See [Rankings](#rankings)."), "a verdict names what it rests on"
    assert sum(one[3] == "not run" and one[4].startswith("`") for one in rows) == len(CLAIMS) - 1


def test_a_claim_that_no_row_tests_does_not_hold_by_that() -> None:
    """A checkpoint that answers problems of its own has rows, but none about the paper's tasks."""
    rows = abstract_rows([record("operating-points", [row("mine", "no", "τ = 1: riddles, change in right answers")])])
    (found,) = [one for one in rows if one[0].startswith("Weights alone")]
    assert found[2:4] == ("not measured", "**cannot tell**") and "No row" in found[4]
    rows = abstract_rows([record("maps", [row("mine", None, "share")])])
    assert [one[3] for one in rows if one[0].startswith("It needs no router")] == ["**holds**"]


def test_a_repeated_run_says_how_many_figures_are_found_again() -> None:
    first, second, third = (row("m", None, name) for name in "abc")
    made = {"command": "again", "commit": "d", "hardware": "one core"}
    later = record("horizons", [first, {**second, "measured": 1.02}, third], **made)
    (line,) = found_again(record("horizons", [first, second]), [later, record("maps", [first], **made)])
    assert "*Repeated* on m: 1 of 2 figures are the same within 1%. `again` at d, one core." in line


def test_the_page_shows_one_saturated_comparison_of_each_model() -> None:
    dull = [{**row(model, "cannot tell"), "note": f"oriented +1; {SATURATED}"} for model in "aab"]
    telling = row("a", "yes")
    assert without_repeats([*dull, telling]) == ([dull[0], dull[2], telling], 1)


def test_every_experiment_says_how_it_differs_from_the_papers_protocol() -> None:
    sampled = [{**row("m", "yes"), "interval": [0.0, 1.0]}]
    made = {"samples": 50, "seeds": 10, "hardware": "NVIDIA H200", "protocol": {"dtype": "float32"}}

    def said(name: str, rows: Any, rests_on: str = "", **more: Any) -> str:
        about = {"where": "Table 5", "rests_on": rests_on, "provenance": {**made, **more}}
        return differs({**record(name, rows), **about})

    assert said("rankings", sampled, rejudged="later") == f"first protocol {OLDER}"
    assert said("rankings", sampled) == "float32 (TF32); 500 pictures"
    assert said("rankings", sampled, left_out=["tiny-dit: refreshed"]).endswith(
        "without extra refreshes on tiny-dit (not the paper's)"
    )
    assert said("maps", [row("m", "yes", "share")], "the weights alone") == ""
    assert said("bounds", [row("m", "yes", "Lemma 2")], steps=20) == (
        "no experiment of the paper; 20 steps; float32 (TF32)"
    )


def test_the_page_in_the_docs_is_made_from_the_files() -> None:
    """Nobody edits a number by hand, and no file changes without the page."""
    page, results = ROOT / "docs" / "results.md", ROOT / "results"
    if not page.is_file():
        pytest.skip("the pages are not here")
    found = [results / "experiments" / f"{name}.json" for name in EXPERIMENTS]
    records = [read_experiment(file) for file in found if file.is_file()]
    ladders = [read_ladder(results / "ladder" / f"{name}.json") for name in ("ladder", "ladder_modes")]
    smallest = read_smallest(results / "smallest_experiments" / "smallest_experiments.json")
    again = [read_experiment(file) for file in sorted((results / "experiments_repeated").glob("*.json"))]
    text = [read_experiment(file) for file in sorted((results / "experiments_text").rglob("*.json"))]
    assert page.read_text() == results_page(records, "../results/experiments", ladders, smallest, again, text)
    for one in records:
        assert (results / "experiments" / f"{one['name']}.md").read_text() == experiment_table(one)


def test_verdicts_of_older_measurements_are_marked_and_the_mark_is_explained() -> None:
    rows = [row("tiny-dit", "yes", "T = 10: spectral against depth")]
    old, new = record("horizons", rows, rejudged="later"), record("horizons", rows)
    marked, plain = ([one[3] for one in abstract_rows([made])] for made in (old, new))
    assert f"**holds** {OLDER}" in marked and "**holds**" in plain and not any(OLDER in one for one in plain)
    assert about_older([old])[0].startswith(OLDER) and about_older([new]) == []


def test_a_model_without_a_row_is_said_not_to_be_measured() -> None:
    near = {"unit": "dB", "measured": 1.0, "interval": [0.5, 1.5], "holds": "no"}
    lines = models_table([record("rankings", [{**row("tiny-dit", "yes"), "nearness": near}])])
    (ranked,) = [line for line in lines if "At equal work" in line]
    assert ranked.endswith("| not measured | 1 yes (nearer: 1 no) | not measured | not measured |")


def test_a_model_that_a_claim_is_not_about_has_an_empty_cell() -> None:
    """Of text there is the lemma and no theorem."""
    rows = [row("tiny-llada", "yes", "Lemma 2: units"), row("tiny-dit", "yes", "Theorem 1: rank correlation")]
    (line,) = [line for line in models_table([record("bounds", rows)]) if "perturbation" in line]
    assert line.endswith("|  |  | 1 yes | not measured |  |"), "neither on the model that is gone nor on the next one"


def test_a_model_that_is_gone_is_still_shown_and_its_command_is_named_once() -> None:
    """What was measured on it stays in its column; the model that came in its place was not measured there."""
    gone = record("rankings", [row("tiny-llada", "yes"), row("tiny-dit", "no")])
    head, *lines = models_table([gone])
    assert head.startswith("| the abstract says | tiny-llada | small-llada | tiny-dit |")
    (ranked,) = [line for line in lines if "At equal work" in line]
    assert ranked.endswith("| 1 yes | not measured | 1 no | not measured | not measured |")
    (told,) = [one for one in abstract_rows([gone]) if one[0].startswith("At equal work")]
    assert "small-llada" not in told[4], "another model that writes stands in for it"
    (said,) = retired_of([gone, gone])
    assert "`python -m training.train_llada`" in said and retired_of([record("maps", [row("tiny-dit", "yes")])]) == []
    for model, command in RETIRED.items():
        card = ROOT / "results" / CARD.format(model)
        assert f"{command} " in card.read_text(encoding="utf-8") and f"(../{card.relative_to(ROOT)})" in said


def timing(case: str, mode: str, ms: float, spread: float = 0.0, schedule: str = "lifetimes 35%") -> dict[str, Any]:
    names = {"llada:512": "LLaDA-8B", "uvit:16": "U-ViT-L/2", "dit:16": "DiT-XL/2"}
    made = {"case": case, "model": names.get(case, case), "mode": mode, "ms_per_evaluation": ms, "spread": spread}
    return {**made, "schedule": "full" if mode == "eager" else schedule}


def test_the_ladder_speaks_for_the_papers_settings_only() -> None:
    rows = [
        timing("dit:16", "eager", 25.0),
        timing("dit:16", "jagged", 1.0, schedule="lifetimes 34%, offloaded"),
        timing("dit:16", "jagged", 10.0),
        timing("dit:1", "eager", 25.0),
        timing("dit:1", "jagged", 10.0),
    ]
    assert [(one["model"], one["measured"], one["holds"]) for one in ladder_rows({"rows": rows})] == [
        ("DiT-XL/2", 2.5, "no")
    ]


def test_speeds_without_compiled_branches_decide_and_the_others_stand_beside() -> None:
    """The paper captures graphs and compiles nothing else."""
    rows = [
        timing("llada:512", "eager", 60.0),
        timing("llada:512", "jagged", 15.0),
        timing("llada:512", "jagged + compiled", 10.0),
        timing("uvit:16", "eager", 25.0),
        timing("uvit:16", "jagged", 10.0),
        timing("uvit:16", "jagged + compiled", 5.0),
    ]
    (fast,) = [one for one in abstract_rows([], [{"rows": rows}]) if one[0].startswith("The captured-graph")]
    assert fast[2] == "2.5× to 4×; 5× to 6× with compiled branches"
    assert fast[3] == f"**does not hold** {TIMED}"
    assert "as claimed: LLaDA-8B 4×, compiled 6× (paper 3.0×); slower than claimed: U-ViT-L/2 2.5×" in fast[4]


@pytest.mark.parametrize(("spread", "holds"), [(0.01, "no"), (0.05, "cannot tell")])
def test_a_speed_within_the_spread_of_its_times_cannot_tell(spread: float, holds: str) -> None:
    rows = [timing("dit:16", "eager", 29.5), timing("dit:16", "jagged", 10.0, spread)]
    assert [one["holds"] for one in ladder_rows({"rows": rows})] == [holds]


def test_a_note_has_a_title_and_a_text() -> None:
    assert titled("† **Older.** From before.") == ("† Older", "From before.")
    assert titled("‡ **Speeds** ([all](x.md)) are old.") == ("‡ Speeds", "Speeds (all) are old.")


def test_graphs_and_eliminated_branches_are_two_claims_about_llada() -> None:
    """A file without padded graphs says nothing of them, and a second file may."""
    eager, whole = timing("llada:512", "eager", 60.0), timing("llada:512", "jagged", 10.0)
    padded = timing("llada:512", "padded", 30.0)
    first, second = {"rows": [eager, whole]}, {"rows": [eager, padded, whole]}
    assert mode_rows(first) == []
    said = {one[0]: one for one in abstract_rows([], [first, second])}
    (graphs,) = [one for says, one in said.items() if "padded graph alone" in says]
    (eliminated,) = [one for says, one in said.items() if says.startswith("Eliminating")]
    assert graphs[2:4] == ("2×", f"**does not hold** {TIMED}")
    assert eliminated[2:4] == ("6×, 3 times padded", f"**holds** {TIMED}")


def test_the_speeds_say_how_old_they_are() -> None:
    setting = {"commit": "abc", "lifetimes": "spectral"}
    assert "abc" in about_ladders([{"settings": {"dit:16": setting}, "rows": []}])[0]
    assert "random scores" in about_ladders([{"settings": {"dit:16": {"commit": "abc"}}, "rows": []}])[0]
    assert "random scores" not in about_ladders([{"settings": {"dit:16": setting}, "rows": []}])[0]
    assert about_ladders([]) == []


def test_speeds_of_several_runs_are_all_told() -> None:
    eager = timing("llada:512", "eager", 30.0)
    runs = [{"rows": [eager, timing("llada:512", "jagged + compiled", ms)]} for ms in (10.0, 15.0)]
    assert runs_differ(runs) == {"LLaDA-8B": [3.0, 2.0]} and runs_differ(runs[:1]) == {}


def test_a_model_measured_by_blocks_is_counted_as_the_paper_counts() -> None:
    """The paper's 28 comparisons are seven rivals of four models, by blocks."""
    by = [
        {**row(model, "yes"), "granularity": kind} for model, kind in (("a", "block"), ("a", "branch"), ("b", "branch"))
    ]
    assert as_the_paper_counts(by) == [by[0], by[2]]
    (ranked,) = [one for one in abstract_rows([record("rankings", by)]) if one[0].startswith("At equal work")]
    assert ranked[2] == "better in 2 of 2, worse in 0" and "by branches a: 1 better" in ranked[4]
    by = [{**one, "model": "tiny-dit"} for one in by[:2]]
    (line,) = [line for line in models_table([record("rankings", by)]) if "At equal work" in line]
    assert "by blocks 1 yes; by branches 1 yes" in line


def test_a_model_whose_tasks_can_tell_decides_about_text() -> None:
    quantity = "SCR/Frobenius against depth: more right answers in arithmetic, share"
    easy = {**row("tiny-llada", "cannot tell", quantity), "granularity": "block"}
    hard = {**row("small-llada", "no", quantity.replace("arithmetic", "sums-5")), "granularity": "block"}
    made = {"models": ["weights/small-llada"], "weights": {"small-llada": "sha256:0"}, "protocol": {"tasks": "('s',)"}}
    text = {**record("rankings", [hard]), "provenance": {**made, "samples": 2, "seeds": 2, "orders": 3}}
    (ranked,) = [one for one in abstract_rows([record("rankings", [easy])], (), [text]) if "At equal" in one[0]]
    assert ranked[2:4] == ("better in 0 of 1, worse in 1", "**does not hold**")
    assert "small-llada** (s: 2 samples of each of 2 seeds" in about_text([text])[0] and about_text([]) == []


def test_a_comparison_of_two_ruined_schedules_is_taken_back_and_no_other() -> None:
    shows, kind = "pictures of the class asked for", {"granularity": "block"}
    least = {"SCR/Frobenius": 0.07, "depth": 0.08, "random": 0.3}
    ways = [
        {**row("m", None, f"held for good, {way}: {shows}"), "interval": [low, 0.9], **kind}
        for way, low in least.items()
    ]
    against = [{**row("m", "no", f"SCR/Frobenius against {way}: FID lower by"), **kind} for way in ("depth", "random")]
    found = restated("rankings", [*ways, *against], {})
    assert [one["holds"] for one in found[3:]] == ["cannot tell", "no"]
    (ranked,) = [one for one in abstract_rows([record("rankings", found)]) if one[0].startswith("At equal work")]
    assert "FID ranks nothing (alone it would say: 0 better, 1 worse)" in ranked[4]
    assert RUINED in found[3]["note"] and restated("rankings", found, {}) == found


def test_margins_that_decide_are_named_in_the_rows() -> None:
    rows = [
        {**row("m", "yes", "coefficient of variation of Q"), "measured": 0.491},
        row("m", "yes", "right answers, lowest SCR frozen less full fine-tuning"),
    ]
    cv, near = restated("audit", rows, {})
    assert cv["holds"] == "no" and "0.41, the paper's largest" in cv["note"]
    assert near["holds"] == "yes" and "at most 0.01 fewer" in near["note"]


def test_stored_figures_are_judged_by_fid_with_the_widest_interval() -> None:
    """By nearness the stored verdict was no; by FID the spectral order is better."""
    assert widest((1.0, 0.5, 1.5), (5.0, 4.0, 6.0)) == (4.0, 2.5, 5.5)
    stored = {"model": "tiny-dit", "paper": None, "holds": None, "note": ""}
    above = ": FID above full inference's, share of it"
    rows = [
        {**stored, "quantity": f"held for good, SCR/Frobenius{above}", "measured": 89.0, "interval": [88.0, 90.0]},
        {**stored, "quantity": f"held for good, depth{above}", "measured": 109.0, "interval": [108.0, 110.0]},
        {**stored, "quantity": "held for good, depth: dB to the full run's picture", "measured": 10.8, "interval": [10,
        11]}, {
            **stored, "quantity": "held for good: SCR/Frobenius less depth, psnr", "measured": -1.0,
            "interval": [-1.2, -0.8], "holds": False, "note": "paired, p = 0.0005; depth oriented -1",
        },
    ]  # fmt: skip
    made = rows_of("rankings", {"rows": rows})
    assert len(made) == 3  # the dB stand beside the FID
    assert made[1].nearness is not None and made[1].nearness.measured == 10.8
    decided = made[-1]
    assert decided.holds == "yes" and decided.measured == 20.0 and decided.interval == (18.0, 22.0)
    assert decided.nearness is not None and decided.nearness.holds == "no"
    assert decided.said == "0.52 FID"  # 2.87 − 2.35 in the paper's table
