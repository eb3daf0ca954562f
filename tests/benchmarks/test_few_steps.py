"""The benchmark of few steps: it counts, and a scheduler that adds noise is computed in full."""

from pathlib import Path

import pytest

from benchmarks import few_steps


def test_every_cell_has_the_held_run_and_as_many_plain_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_steps, "HELD", {6: (4,)})
    monkeypatch.setattr(few_steps, "ONCE", {3: (2,)})
    monkeypatch.setattr(
        few_steps, "SCHEDULERS", {name: few_steps.SCHEDULERS[name] for name in ("Euler, trailing", "TCD")}
    )
    out = tmp_path / "few.json"
    few_steps.main(out=out, samples=1, only=["tiny-dit"])
    euler, tcd = few_steps.read_result(out, "few steps", few_steps.RECORD)["rows"]
    assert (euler["steps"], euler["computed"]) == (6, 4) and euler["held_db"] > 20 < euler["fewer_db"]
    assert tcd["computed"] == 3 and tcd["held_db"] == few_steps.HIGHEST
    assert "| 6, 4 | 1.50× |" in out.with_suffix(".md").read_text() and "| full |" in out.with_suffix(".md").read_text()
