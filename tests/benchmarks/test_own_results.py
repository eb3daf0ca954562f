"""The benchmarks read their own result files strictly: a mutated file is read or refused in a sentence."""

import importlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.places import ROOT
from tenuto.errors import TenutoError
from tenuto_lab.result_files import ORIGIN, Check, both, makes, read_result
from tests.fuzz.files import damaged, mutated

MADE = dict.fromkeys(ORIGIN, "x")
INTERVAL = [1.0, 0.5, 1.5]
GOAL = {"dB": 30.0, "low": 29.0, "high": 31.0, "setting": "x"}
WAY = {"way": "tenuto", "budget": 0.25, "work": 0.25, "evaluations": 12, "full": GOAL, "converged": GOAL}
# small files in the place of large ones, or of results that are not in the repository
SMALL: dict[str, Any] = {
    "scaling": {
        "cases": {
            "small, guidance 3": {
                **{"network": "small", "guidance": 3.0, "prediction": "noise", "early": False, "complete": True},
                **{"parameters": 10**6, "trained_samples": 10**5, "trained_seconds": 9.5, "held_out_loss": None},
                "full": {"converged": INTERVAL, "accuracy": 0.5, "distance": INTERVAL},
                "rows": [{**WAY, "distance_beyond_full": INTERVAL, "accuracy": 0.5}],
                "provenance": MADE,
            }
        }
    },
    "ablation": {
        **{"samples": 4, "seeds": 2, "provenance": MADE},
        "networks": {
            "tiny-dit": [{"way": str(i), "work": 0.25, "psnr": 30.0, "low": 29.0, "high": 31.0} for i in range(20)]
        },
    },
}


def described(module: str, table: str = "table", check: str = "RECORD") -> tuple[Check, Callable[..., object]]:
    found = importlib.import_module(f"benchmarks.{module}")
    return getattr(found, check), getattr(found, table)


def case(name: str) -> tuple[Check, Callable[..., object]]:
    """The check of a benchmark's file, and what is drawn from it."""
    if name in ("transfer", "scaling", "strong_rivals", "text_8b"):
        return described(f"{name}.report", "table" if name in ("strong_rivals", "text_8b") else "tables")
    if name == "quality":
        return described(name, "summary")
    if name == "end_to_end":
        return described("end_to_end.planning", "tables")
    if name == "coverage":
        check, page = described("coverage.report", "page")
        return check, lambda record: page(record["provenance"], record["pipelines"])
    if name == "ladder":
        from tenuto_lab.speed.ladder_report import LADDER_FILE, ladder_tables

        return LADDER_FILE, lambda known: ladder_tables(known, {"dit": 3.0})
    if name == "text_frontier":
        check, table = described(name)
        return both(check, makes(table)), table
    if name == "score_8b":
        return described(name, "RECORD")[0], lambda record: record["runs"]
    return described(name)


NAMES = (
    *(
        "quality",
        "few_steps",
        "settings",
        "readme",
        "strong_rivals",
        "end_to_end",
        "ladder",
        "text_8b",
        "text_frontier",
    ),
    *("coverage", "transfer", "score_8b", "scaling", "ablation"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_result_file_is_read_and_a_mutated_one_is_read_or_refused(name: str, tmp_path: Path) -> None:
    check, draw = case(name)
    kept, path = ROOT / "results" / name / f"{name}.json", tmp_path / "own.json"
    record = SMALL[name] if name in SMALL else json.loads(kept.read_text(encoding="utf-8"))
    path.write_text(json.dumps(record))
    draw(read_result(path, "result", check))
    rng, refused, named = random.Random(0), 0, 0
    for _ in range(60):
        changed = record
        for _ in range(rng.randint(1, 3)):
            changed = mutated(changed, rng)
        content = json.dumps(changed).encode(errors="surrogatepass")
        path.write_bytes(damaged(content, rng) if rng.random() < 0.1 else content)
        try:
            draw(read_result(path, "result", check))
        except TenutoError as error:
            refused += 1
            named += path.name in str(error)
    assert refused == named > 10


def test_a_trial_that_was_not_finished_is_tried_again(tmp_path: Path) -> None:
    from benchmarks.coverage.__main__ import tried_before

    whole = {"pipeline": "A", "key": "a", "verdict": "works", "why": ""}
    lines = [
        json.dumps(whole),
        "[1]",
        '{"key": "b"}',
        json.dumps({**whole, "key": "c", "verdict": 3}),
        '{"key": "d", "pi',
    ]
    (tmp_path / "trials").write_text("\n".join(lines))
    assert tried_before(tmp_path / "trials") == {"a": whole}
    assert tried_before(tmp_path / "none") == {}
