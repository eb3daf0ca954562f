"""tenuto score: a table, a file, and what is left when it fails."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tenuto.cli import console
from tests.cli.conftest import Run
from tests.conftest import random_dit, write_checkpoint


def test_score_prints_a_table_and_writes_the_file(tenuto: Run, model: Path, tmp_path: Path) -> None:
    from tenuto_lab.scoring.scores import FORMAT

    status, out, err = tenuto("score", model, "-o", "scores.json")
    assert status == 0
    assert "blocks.2.mlp" in out and "attention" in out and "Wrote scores.json" in err
    assert json.loads((tmp_path / "scores.json").read_text())["format"] == FORMAT


def test_figures_are_whole_in_a_narrow_terminal(tenuto: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (80, 66):
        monkeypatch.setattr(console.out, "width", columns)
        out = tenuto("score", model)[1]
        assert "1.0000" in out and "…" not in out


def test_score_as_json(tenuto: Run, model: Path) -> None:
    status, out, _ = tenuto("score", model, "--json")
    assert status == 0
    assert len(json.loads(out)["units"]) == 6


def test_an_output_that_cannot_be_written_is_named(tenuto: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    status, _, err = tenuto("score", model, "-o", "file/scores.json")
    assert status == 1
    assert "Cannot write file/" in err and "scores.json" in err
    (tmp_path / "folder").mkdir()
    status, _, err = tenuto("score", model, "-o", "folder")
    assert status == 1 and "Cannot write folder: it is a directory" in err
    status, _, err = tenuto("score", model, "-o", "model/config.json")
    assert status == 1 and "it belongs to what is read" in err
    assert not list(tmp_path.glob("*.journal")) and not list(tmp_path.glob(".*"))


def test_a_failed_scoring_leaves_nothing_behind(tenuto: Run, model: Path, tmp_path: Path) -> None:
    state = load_file(model / "model.safetensors")
    state["blocks.1.mlp.fc1.weight"][0, 0] = float("nan")
    save_file(state, model / "model.safetensors")
    status, _, err = tenuto("score", model, "-o", "scores.json")
    assert status == 1 and "blocks.1.mlp.fc1.weight" in err
    assert {file.name for file in tmp_path.iterdir()} == {"model"}


def test_a_disk_that_fills_up_when_scores_are_saved_costs_no_scoring(
    tenuto: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenuto.errors import TenutoError
    from tenuto_lab.scoring import spectrum
    from tenuto_lab.scoring.scores import Scores

    def full_disk(self: Scores, path: Path) -> None:
        raise TenutoError(f"Cannot write {path}: No space left on device.")

    with monkeypatch.context() as patched:
        patched.setattr(Scores, "save", full_disk)
        assert tenuto("score", model, "-o", "scores.json")[0] == 1
    assert (tmp_path / "scores.json.journal").exists()
    monkeypatch.setattr(spectrum, "_scaled_energies", lambda *args: pytest.fail("computed again"))
    assert tenuto("score", model, "-o", "scores.json")[0] == 0
    assert not (tmp_path / "scores.json.journal").exists()


def test_brackets_in_a_path_are_no_markup(tenuto: Run, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "dit[v2]", random_dit())
    status, out, err = tenuto("score", "dit[v2]", "-o", "scores[v2].json")
    assert status == 0 and "dit[v2]: 6 units" in out and "Wrote scores[v2].json" in err
    assert "dit[v2]" in tenuto("schedule", "scores[v2].json", "--steps", 4)[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny-ditt", "Did you mean tiny-dit?"),
        ("tinysdxl", "Did you mean tiny-sdxl?"),
        ("./modle", "Did you mean model?"),
        ("folder/inner-modle", "Did you mean folder/inner-model?"),
        ("no-such-model", "There is no model 'no-such-model'"),
        ("~no-such-user/x", "'~no-such-user/x' cannot be opened"),
        ("x" * 5000, "cannot be opened"),
    ],
)
def test_a_model_that_is_not_there_is_answered_by_a_sentence(
    tenuto: Run, name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*given: object, **options: object) -> None:
        raise OSError("there is no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    for folder in ("model", "folder/inner-model"):
        (tmp_path / folder).mkdir(parents=True)
    for command in (("score", name), ("schedule", name, "--steps", 4)):
        status, out, err = tenuto(*command)
        assert status == 1 and out == "" and words in err.replace("\n", " ")
