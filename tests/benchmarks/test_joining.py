"""What several processes measured comes together in one file, with the origin of every row."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import joining
from benchmarks.joining import joined, main
from tenuto.errors import TenutoError, UsageError

MADE = {"command": "x", "commit": "y", "torch": "2", "hardware": "a CPU", "date": "today"}
LATER = {**MADE, "commit": "z"}
NEAR = {"psnr": 30.0, "low": 29.0, "high": 31.0, "setting": "a"}
ROW = {"full": NEAR, "converged": NEAR}
PICTURES = {"full": [[0.1, 0.2]], "converged": [[0.3, 0.4]]}
OTHERS = {"full": [[1.1, 0.2]], "converged": [[0.3, 0.4]]}


def of_setting(scheduler: str, *steps: int, **made: Any) -> dict[str, Any]:
    numbers = {f"{way}_{goal}": 30.0 for way in ("ours", "fewer", "full") for goal in ("full", "converged")}
    rows = [{"steps": one, "evaluations": 6, **numbers} for one in steps]
    return {"network": "tiny-dit", "scheduler": scheduler, "guidance": 3.0, "rescaled": 0.0, "rows": rows, **made}


def test_settings_are_replaced_by_number_of_steps() -> None:
    known = {"cases": [of_setting("DDIM", 20, 50), of_setting("Euler", 20)], "provenance": MADE, "samples": 4}
    part = {"cases": [of_setting("DDIM", 50, 250, provenance=LATER, samples=8), of_setting("Euler", 20)]}
    cases = joined("settings", known, [part])["cases"]
    found = [(case["scheduler"], [row["steps"] for row in case["rows"]]) for case in cases]
    assert found == [("DDIM", [20]), ("DDIM", [50, 250]), ("Euler", [20])]
    assert cases[1]["provenance"] == LATER and cases[1]["samples"] == 8


def of_quality(network: str, reached: float) -> dict[str, Any]:
    row = {"asked": 40, "evaluations": 12, "estimated": 41.0, "reached": reached, "seed": 0}
    return {"network": network, "guidance": 4.0, "solver": "ddim", "steps": 50, "rows": [row]}


def test_qualities_keep_the_origin_of_their_file() -> None:
    known = {"cases": [of_quality("tiny-dit", 40), of_quality("tiny-uvit", 41)], "provenance": MADE, "samples": 3}
    part = {"cases": [of_quality("tiny-uvit", 42), of_quality("tiny-sdxl", 43)], "provenance": LATER, "samples": 8}
    record = joined("quality", known, [part])
    assert [case["rows"][0]["reached"] for case in record["cases"]] == [40, 42, 43]
    assert [case.get("samples") for case in record["cases"]] == [None, 8, 8]
    table = joining.KINDS["quality"][2](record, Path("x"))
    assert "tiny-dit: 3 samples each. `x` at y" in table and "tiny-uvit, tiny-sdxl: 8 samples each. `x` at z" in table


def of_rivals(pictures: Any, made: Any, **by_count: list[str]) -> dict[str, Any]:
    rows = {count.strip("n"): {name: dict(ROW) for name in names} for count, names in by_count.items()}
    about = {"fingerprints": pictures, "samples": 24, "settings": "all", "provenance": made}
    return {"cases": {"tiny-dit": rows}, "measured": {"tiny-dit": about}}


def test_rivals_of_the_same_pictures_stand_beside_each_other_with_their_origins() -> None:
    known = of_rivals(PICTURES, MADE, n6=["DDIM"], n8=["DDIM", "Tenuto, 50 steps"])
    part = of_rivals(PICTURES, LATER, n6=["DDIM", "ZEUS"], n8=["ZEUS"])
    part["cases"]["tiny-dit"]["6"]["DDIM"]["reason"] = "measured again"
    record = joined("strong_rivals", known, [part])
    rows, about = record["cases"]["tiny-dit"], record["measured"]["tiny-dit"]
    assert {count: list(found) for count, found in rows.items()} == {
        "6": ["DDIM", "ZEUS"],
        "8": ["DDIM", "Tenuto, 50 steps", "ZEUS"],
    }
    assert about["provenance"] == MADE
    assert about["provenance_of"] == {"DDIM (6 evaluations)": LATER, "ZEUS": LATER}


def test_rivals_of_other_pictures_are_refused_or_take_the_place_of_the_case() -> None:
    part = of_rivals(OTHERS, LATER, n6=["ZEUS"])
    with pytest.raises(UsageError, match="other pictures"):
        joined("strong_rivals", of_rivals(PICTURES, MADE, n6=["DDIM"]), [part])
    record = joined("strong_rivals", of_rivals(PICTURES, MADE, n6=["DDIM"]), [part], replace=True)
    assert record["cases"]["tiny-dit"] == {"6": {"ZEUS": ROW}} and record["measured"]["tiny-dit"]["provenance"] == LATER


def test_rows_without_an_origin_are_joined_only_if_they_were_made_alike() -> None:
    parts = [{"rows": [{"n": n}], "samples": 4, "provenance": {**MADE, "command": name}} for n, name in enumerate("ab")]
    record = joined("hindsight", {"rows": []}, parts)
    assert record["rows"] == [{"n": 0}, {"n": 1}] and record["provenance"]["command"] == "a; b"
    with pytest.raises(UsageError, match="no origin of their own"):
        joined("hindsight", record, [{**parts[0], "provenance": LATER}])


def test_networks_and_cases_of_the_frontier_are_replaced() -> None:
    known = {"networks": {"a": 1, "b": 2}, "writers": {}}
    assert joined("transfer", known, [{"networks": {"b": 3}}])["networks"] == {"a": 1, "b": 3}
    known = {"cases": {"a": 1}, "rows": [{"case": "a", "n": 1}], "comparisons": []}
    part = {"cases": {"a": 2}, "rows": [{"case": "a", "n": 2}], "comparisons": [{"case": "a"}]}
    assert joined("frontier", known, [part]) == part


def test_the_command_writes_the_file_and_its_table_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    place, part = tmp_path / "settings.json", tmp_path / "part.json"
    part.write_text(json.dumps({"cases": [of_setting("DDIM", 50, provenance=LATER, samples=8)]}))
    main("settings", [part], place)
    assert "| tiny-dit | DDIM | 3 | 50 | 6 |" in place.with_suffix(".md").read_text()
    main("settings", [part], place, fresh=True)
    assert len(json.loads(place.read_text())["cases"]) == 1
    with pytest.raises(UsageError, match="no 'x' to join"):
        main("x", [part], place)
    part.write_text(json.dumps({"cases": [{}]}))
    with pytest.raises(TenutoError, match="no file of settings"):
        main("settings", [part], place)
