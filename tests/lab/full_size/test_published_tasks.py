"""Published tasks are built from their published files and can be asked; each on a miniature of the file."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tenuto.errors import TenutoError, UsageError
from tenuto_lab.cli import app
from tenuto_lab.full_size.published_tasks import KEY, NEEDLE, TASKS, built
from tenuto_lab.full_size.tasks import judged, read_tasks
from tenuto_lab.full_size.text_features import mauve_of_run, text_features

MINIATURES: dict[str, list[dict[str, Any]]] = {
    "gsm8k": [{"question": "What is 2 and 3?", "answer": "It is <<2+3=5>>5.\n#### 5"}],
    "math-500": [{"problem": "Compute $1+1$.", "answer": "2", "unique_id": "test/1.json", "level": 1}],
    "humaneval": [
        {
            "task_id": "HumanEval/0",
            "prompt": "def add(a, b):\n",
            "entry_point": "add",
            "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n",
        }
    ],
    "mbpp": [{"task_id": 11, "text": "Add two numbers.", "test_list": ["assert add(2, 3) == 5"]}],
    "cnn-dailymail": [{"article": "A fox ran over a dog. It was quick.", "highlights": "A fox ran over a dog."}],
}
RIGHT = {
    "gsm8k": "So it is \\boxed{5}",
    "math-500": "\\boxed{2}",
    "humaneval": "    return a + b\n",
    "mbpp": "def add(a, b):\n    return a + b\n",
    "cnn-dailymail": "A fox ran over a dog.",
    "needle": f"You should {KEY}.",
    "wikitext": " ".join(f"word{i}" for i in range(32, 80)),
}
WRONG = dict.fromkeys(RIGHT, "    return 7")


def source(name: str, folder: Path) -> Path:
    if name.startswith("needle"):
        path = folder / "book.txt"
        path.write_text(" ".join(f"Sentence {i} says nothing of note." for i in range(2000)), encoding="utf-8")
        return path
    if name == "wikitext":
        path = folder / "wiki.test.raw"
        said = " ".join(f"word{i}" for i in range(80))
        path.write_text(f" = A heading = \n\n {said} \n too short \n", encoding="utf-8")
        return path
    text = "\n".join(json.dumps(one) for one in MINIATURES[name])
    if name == "humaneval":
        path = folder / "HumanEval.jsonl.gz"
        path.write_bytes(gzip.compress(text.encode()))
        return path
    path = folder / f"{name}.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", TASKS)
def test_a_miniature_is_built_asked_and_judged(name: str, tmp_path: Path) -> None:
    from tenuto_lab.full_size.answers import Answer

    path = tmp_path / "task.jsonl"
    questions = built(name, source(name, tmp_path))
    path.write_text("".join(json.dumps(one) + "\n" for one in questions), encoding="utf-8")
    asked = read_tasks(path)
    assert len(asked) == len(questions) and TASKS[name].protocol and TASKS[name].length
    if name in ("cnn-dailymail", "wikitext"):
        pytest.importorskip("rouge_score")
    key = "needle" if name.startswith("needle") else name
    assert judged(asked[0], Answer(RIGHT[key], 1, False)).score == 1.0
    assert judged(asked[0], Answer(WRONG[key], 1, False)).score < 1.0


@pytest.mark.parametrize(("name", "tokens"), [("needle", 1000), ("needle-4k", 3900)])
def test_needles_lie_at_all_depths_of_texts_of_the_right_length(name: str, tokens: int, tmp_path: Path) -> None:
    questions = built(name, source(name, tmp_path))
    assert len(questions) == 100
    places = [one["prompt"].index(NEEDLE) / len(one["prompt"]) for one in questions[:10]]
    assert places[0] == 0 and places == sorted(places) and places[-1] > 0.9
    assert all(0.9 < len(one["prompt"]) / (4.2 * tokens) < 1.05 for one in questions)


def test_files_that_are_not_the_published_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text('{"question": "What?"}\n', encoding="utf-8")
    with pytest.raises(TenutoError, match="no answer"):
        built("gsm8k", path)
    with pytest.raises(TenutoError, match="test_list"):
        built("mbpp", path)
    with pytest.raises(UsageError, match="shorter than"):
        built("needle", path)
    with pytest.raises(UsageError, match="published tasks are"):
        built("arc", path)
    path.write_text("no JSON", encoding="utf-8")
    with pytest.raises(TenutoError, match="Cannot read"):
        built("gsm8k", path)
    path.write_text('{"question": "What?", "answer": "nothing"}\n', encoding="utf-8")
    with pytest.raises(TenutoError, match="no number"):  # no answer could ever be right
        built("gsm8k", path)
    path.write_text('{"text": "Add.", "test_list": [{}]}\n', encoding="utf-8")
    with pytest.raises(TenutoError, match="test_list"):  # every answer would be right
        built("mbpp", path)


@pytest.mark.parametrize(
    "content", [b"", b"\x1f\x8b", gzip.compress(b"{}" * 99)[:-9], gzip.compress(b"{}")[:12] + b"\xff" * 9]
)
def test_a_damaged_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "some.jsonl.gz").write_bytes(content)
    with pytest.raises(TenutoError, match=r"some\.jsonl\.gz"):
        built("gsm8k", tmp_path / "some.jsonl.gz")


@pytest.mark.parametrize("name", ["gsm8k", "needle", "wikitext"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TenutoError, match="it is a pipe or a device"):
        built(name, tmp_path / "pipe")


def test_mauve_compares_a_run_with_what_people_wrote(tmp_path: Path) -> None:
    """The three commands, offline: a miniature of WikiText, tiny-llada, and a small GPT-2's features."""
    pytest.importorskip("sklearn")
    pytest.importorskip("rouge_score")
    make_language_model(tmp_path / "gpt2")
    book = [" ".join(f"the {WORDS[(i * j) % 7]} and" for j in range(30)) for i in range(1, 25)]
    (tmp_path / "wiki.test.raw").write_text(" = Title = \n" + "\n".join(book), encoding="utf-8")
    task, results = tmp_path / "wikitext.jsonl", tmp_path / "wikitext.json"

    def run(*arguments: Any) -> str:
        found = CliRunner().invoke(app, ["eval", *map(str, arguments)])
        assert found.exit_code == 0, found.output
        return found.stdout[max(found.stdout.find("{"), 0) :]  # without transformers' progress bars

    run("build", "wikitext", "--source", tmp_path / "wiki.test.raw", "-o", task)
    model = Path(__file__).parents[3] / "weights" / "tiny-llada"
    run("lm", model, "--tasks-file", task, "--length", 8, "--block-length", 8, "--parallel", 0.3, "-o", results)
    asked = ["mauve", results, "--tasks-file", task, "--features", tmp_path / "gpt2", "--json"]
    value = json.loads(run(*asked))
    assert 0 < value["mauve"] <= 1 and value["texts"] == 24
    people = json.loads(results.read_text(encoding="utf-8"))
    answers = {one.id: one.answers[0] for one in read_tasks(task)}
    for one in people["questions"]:
        one["output"] = answers[one["id"]]
    results.write_text(json.dumps(people), encoding="utf-8")
    assert json.loads(run(*asked))["mauve"] > max(value["mauve"], 0.99)  # people write like people


def test_mauve_refuses_too_few_texts_and_other_questions(tmp_path: Path) -> None:
    results, task = tmp_path / "run.json", tmp_path / "task.jsonl"
    task.write_text('{"prompt": "a", "answer": "b", "id": "1"}\n', encoding="utf-8")

    def answered(name: str) -> None:
        one = {"id": name, "task": "task", "metric": "exact", "prompt_sha256": "", "score": 0.0, "output": "x"}
        results.write_text(json.dumps({"questions": [one]}), encoding="utf-8")

    answered("task/1")
    with pytest.raises(UsageError, match="too few"):
        mauve_of_run(results, task, tmp_path, "cpu")
    answered("other/1")
    with pytest.raises(UsageError, match="does not hold answers"):
        mauve_of_run(results, task, tmp_path, "cpu")
    with pytest.raises(TenutoError, match="no language model"):
        text_features(["some text"], tmp_path / "nowhere")


WORDS = ("old", "sea", "man", "red", "house", "night", "river")


def make_language_model(folder: Path) -> None:
    """A GPT-2 of a few thousand random weights, as transformers saves one."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelling = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    spelling.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    transformers.PreTrainedTokenizerFast(tokenizer_object=spelling).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=256, n_positions=256, n_embd=16, n_layer=2, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
