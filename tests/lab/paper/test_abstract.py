"""One screen for readers of the abstract: a claim about everything fails with one sure no, and is "
"open with one doubt."""

from typing import Any

import pytest

from scripts.rejudge import rows_of, widest
from tenuto_lab.paper import EXPERIMENTS
from tenuto_lab.paper.abstract import CLAIMS, abstract_table, found, ladder_rows
from tenuto_lab.paper.experiment_results import ClaimRow


def row(model: str, holds: Any, quantity: str = "SCR/Frobenius against depth: FID lower by") -> dict[str, Any]:
    return ClaimRow(quantity, model, None, 1.0, holds=holds).to_json()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (["yes", "yes"], "**holds**. m: 2 yes"),
        (["yes", "cannot tell"], "**cannot tell**. m: 1 yes, 1 cannot tell"),
        (["yes", "no", "cannot tell"], "**does not hold**. m: 1 yes, 1 no, 1 cannot tell"),
    ],
)
def test_a_claim_about_everything(said: list[Any], told: str) -> None:
    assert found([row("m", holds) for holds in said]) == told


def test_models_that_say_the_same_stand_together() -> None:
    assert found([row("a", "yes"), row("b", "no"), row("c", "yes")]) == "**does not hold**. a, c: yes; b: no"


def test_every_claim_has_a_line_and_an_experiment() -> None:
    assert {claim.experiment for claim in CLAIMS} <= {*EXPERIMENTS, "ladder"}
    lines = abstract_table([{"name": "rankings", "rows": [row("tiny-dit", "yes")]}], None)
    assert len(lines) == 2 + len(CLAIMS)
    ranked = next(line for line in lines if "At matched budgets" in line)
    assert "**holds**. tiny-dit: yes. Not measured: tiny-llada, tiny-uvit, tiny-sdxl" in ranked
    assert sum("| not run |" in line for line in lines) == len(CLAIMS) - 1


def test_the_ladder_speaks_for_the_papers_settings_only() -> None:
    common = {"model": "DiT-XL/2", "mode": "jagged + compiled", "speedup_over_eager": 2.5}
    rows = [
        {**common, "case": "dit:16", "schedule": "lifetimes 34%"},
        {**common, "case": "dit:16", "schedule": "lifetimes 34%, offloaded"},
        {**common, "case": "dit:1", "schedule": "lifetimes 34%"},
    ]
    assert [(one["model"], one["holds"]) for one in ladder_rows({"rows": rows})] == [("DiT-XL/2", "no")]


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
