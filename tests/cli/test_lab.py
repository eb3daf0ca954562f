"""tenuto lab: everything is passed on to the laboratory, and what is missing is said before anything is computed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenuto import laboratory
from tests.cli.conftest import Run


def test_without_the_laboratory_it_says_what_to_install(tenuto: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laboratory, "_named", lambda group: {})
    laboratory.offered.cache_clear()
    status, out, err = tenuto("lab", "frontier", "tiny-dit")
    assert status == 1 and out == "" and "pip install '.[lab]'" in err


def test_a_laboratory_that_cannot_be_loaded_names_the_extra(tenuto: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def offered(name: str, group: str) -> Any:
        raise ModuleNotFoundError("No module named 'lm_eval'", name="lm_eval")

    monkeypatch.setattr(laboratory, "offered", offered)
    status, _, err = tenuto("lab", "bench", "tiny-dit")
    assert status == 1 and "pip install '.[eval]'" in err


@pytest.mark.parametrize(
    ("package", "arguments", "words"),
    [
        ("matplotlib", ("frontier", "tiny-dit", "--png", "x.png"), "--png needs matplotlib"),
        ("matplotlib", ("experiment", "maps"), "The experiment maps needs matplotlib"),
        ("peft", ("experiment", "freezing"), "The experiment freezing needs peft"),
        ("peft", ("experiment", "all"), "The experiment freezing needs peft"),
        ("matplotlib", ("results",), "The page needs matplotlib"),
        ("lm_eval", ("eval", "lm", "small-llada", "--tasks", "gsm8k", "-o", "x.json"), "needs lm_eval"),
        ("torch_fidelity", ("eval", "pictures", "run"), "needs torch_fidelity"),
        ("transformers", ("eval", "pictures", "run", "--features", "own", "--clip", "c"), "--clip needs transformers"),
    ],
)
def test_a_missing_extra_is_said_before_anything_is_computed(
    tenuto: Run, monkeypatch: pytest.MonkeyPatch, package: str, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("tenuto.models.load", lambda *given, **options: pytest.fail("a model was loaded"))
    status, out, err = tenuto("lab", *arguments)
    assert status == 1 and out == "" and words in err
    assert f"pip install '.[{'eval' if arguments[0] == 'eval' else 'lab'}]'" in err


def test_statuses_come_back(tenuto: Run) -> None:
    assert tenuto("lab", "frobnicate")[0] == 2
    assert tenuto("lab", "experiment", "ranking")[0] == 2
    status, _, err = tenuto("lab", "experiment", "ranking")
    assert status == 2 and "Did you mean rankings?" in err
    assert tenuto("lab", "show", "nowhere.json")[0] == 1


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--policy", "anchors", "--share", "0.3", "--ranking", "spectral within type"), "anchors"),
        (("--policy", "allocated", "--ranking", "spectral"), "allocated"),
        (
            ("--policy", "ranked", "--ranking", "stable_rank", "--orientation", "-1", "--budget", "0.4"),
            "ranked_lifetimes",
        ),
        (("--policy", "ranked", "--ranking", "random", "--seed", "3", "--granularity", "block"), "ranked_lifetimes"),
        (("--policy", "delta_dit", "--every", "2", "--cached", "1", "--boundary", "0.5"), "delta_dit"),
        (("--ranking", "scr", "--budget", "0.4"), "ranked_lifetimes"),  # the default policy
        (("--policy", "deep_cache", "--every", "3"), "deep_cache"),  # without long skips: the outer blocks are live
        (("--policy", "deep_cache", "--lifetimes", "0.5"), "both"),  # the paper's Spectral + DeepCache
        (("--policy", "block_cache", "--budget", "0.5", "--samples", "1"), "block_cache"),
    ],
)
def test_candidates_are_scheduled(tenuto: Run, model: Path, options: tuple[str, ...], name: str) -> None:
    status, out, err = tenuto("lab", "schedule", model, "--steps", 12, *options, "-o", "s.json")
    assert status == 0, err
    assert f"policy {name}" in out
    status, out, _ = tenuto("show", "s.json", "--json")
    assert status == 0 and json.loads(out)["policy"]["name"] == name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--policy", "allocated", "--share", "0.3"), "--share belongs to the policy anchors"),
        (("--policy", "refresh"), "refresh"),
        (("--policy", "anchors", "--every", "2", "--budget", "0.3"), "not both"),
        (("--policy", "deep_cache", "--depth", "1"), "has no long skips"),
        (("--policy", "anchors", "--granularity", "block"), "--granularity belongs to the policy ranked"),
    ],
)
def test_options_of_other_candidates_are_refused(
    tenuto: Run, model: Path, options: tuple[str, ...], words: str
) -> None:
    status, out, err = tenuto("lab", "schedule", "model", "--steps", 4, *options)
    assert status == 2 and out == "" and words in err


def test_bench_times_every_way_there_is(tenuto: Run, model: Path, tmp_path: Path) -> None:
    options = ("--batch", "1", "--steps", "10", "--repeats", "1")
    status, out, _ = tenuto("lab", "bench", model, *options, "-o", "bench.json")
    assert status == 0 and "refresh 8" in out and "lifetimes 35%" in out
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["provenance"]["command"] and record["rows"][0]["speedup_over_eager"] == 1
    assert all(row["ms_per_evaluation"] > 0 for row in record["rows"])
    status, _, err = tenuto("lab", "bench", model, "--tokens", "8")
    assert status == 2 and "--tokens has no effect" in err


def test_one_question_has_no_interval(tenuto: Run, tmp_path: Path) -> None:
    (tmp_path / "sums.jsonl").write_text(json.dumps({"prompt": "1 + 1 =", "answer": "2"}) + "\n")
    common = ("--tasks-file", "sums.jsonl", "--length", 2, "--steps", 2)
    for name in ("a.json", "b.json"):
        status, out, err = tenuto("lab", "eval", "lm", "small-llada", *common, "-o", name)
        assert status == 0, err
        assert "1 question," in out and "interval" not in out
    status, out, _ = tenuto("lab", "eval", "compare", "a.json", "b.json")
    assert status == 0 and "1 question," in out and "interval" not in out


def test_figures_of_a_language_task_come_with_their_protocol(tenuto: Run, tmp_path: Path) -> None:
    """A miniature from end to end: built, answered in full and in parallel, compared."""
    asked = [{"question": f"What is {i} and 3?", "answer": f"It is #### {i + 3}"} for i in range(2)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    assert tenuto("lab", "eval", "build", "gsm8k", "--source", "test.jsonl", "-o", "gsm8k.jsonl")[0] == 0
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "word " * 1100, "answer": "2"}) + "\n")
    files = ("--tasks-file", "gsm8k.jsonl", "--tasks-file", "long.jsonl")
    for name, options in (("full.json", ("--steps", 4)), ("fast.json", ("--parallel", "0.9"))):
        status, out, err = tenuto("lab", "eval", "lm", "small-llada", *files, "--length", 32, *options, "-o", name)
        assert status == 0, err
        assert "Protocol of gsm8k: " in out and "zero-shot; right if the last number" in out
        assert "Answers: greedy, 32 tokens in one block" in out
        assert "1 prompt did not fit into the model's context and lost the beginning." in " ".join(out.split())
    said = " ".join(out.split())
    assert "every token of a probability of at least 0.9, all positions computed at the first 4" in said
    assert "while the KV cache passes its checks" in said
    status, out, _ = tenuto("lab", "eval", "compare", "full.json", "fast.json")
    assert status == 0 and "gsm8k, numeric: 0" in out and "2 questions" in out
    assert "interval +0.000 to +0.000" not in out  # of two questions that are alike


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tenuto_lab", "show", "nowhere.json"], capture_output=True, text=True)
    assert done.returncode == 1 and "nowhere.json" in done.stderr and "Traceback" not in done.stderr
