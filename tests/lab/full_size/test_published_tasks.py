"""Published tasks are built from their published files and can be asked; each on a miniature of the file."""

import gzip
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tenuto
from tenuto.errors import TenutoError, UsageError
from tenuto_lab.cli import app
from tenuto_lab.full_size.answer_metrics import METRICS, passes
from tenuto_lab.full_size.paired_runs import compare
from tenuto_lab.full_size.published_tasks import KEY, NEEDLE, TASKS, built
from tenuto_lab.full_size.tasks import judged, protocol_of, read_tasks
from tenuto_lab.full_size.text_features import mauve_of_run, text_features
from tenuto_lab.paper.language_tasks import FULL_SIZE

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
    assert len(asked) == len(questions) and name in TASKS[name].told and str(TASKS[name].length) in TASKS[name].told
    if name == "cnn-dailymail":
        pytest.importorskip("rouge_score")
    key = "needle" if name.startswith("needle") else name
    if name == "wikitext":  # whose texts are judged together
        assert judged(asked[0], Answer(RIGHT[key], 1, False)).score is None
        return
    assert judged(asked[0], Answer(RIGHT[key], 1, False)).score == 1.0
    assert judged(asked[0], Answer(WRONG[key], 1, False)).score < 1.0


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("humaneval", "```python\ndef add(a, b):\n    return a + b\n```\nIt adds."),
        ("humaneval", "Here is the function:\n\n```python\ndef add(a, b):\n    return a + b"),  # cut at its length
        ("humaneval", "    return a + b\n```\nIt adds."),
        ("humaneval", "    return a + b\n\ndef other(a):\n    return"),
        ("humaneval", "def add(a, b):\n    return a + b\n"),
        ("mbpp", "```python\ndef add(a, b):\n    return a + b\n```"),
        ("mbpp", "def add(a, b):\n    return a + b\n```\nFor example:\n```python\nadd(1)\n```"),
        ("mbpp", "Here:\n```\ndef add(a, b):\n    return a + b\n```"),
    ],
)
def test_a_right_program_passes_in_a_fence_or_without(name: str, output: str, tmp_path: Path) -> None:
    path = tmp_path / "task.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in built(name, source(name, tmp_path))), encoding="utf-8")
    (question,) = read_tasks(path)
    assert passes(output, question.answers, question.code, question.until) == 1.0
    assert passes(output.replace("a + b", "a - b"), question.answers, question.code, question.until) == 0.0


def test_an_answer_in_a_fence_reaches_the_judge_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenuto_lab.full_size.answers import Writer
    from tenuto_lab.full_size.tasks import run_files

    path = tmp_path / "humaneval.jsonl"
    lines = [json.dumps(one) for one in built("humaneval", source("humaneval", tmp_path))]
    path.write_text("\n".join(lines), encoding="utf-8")
    writer = Writer(tenuto.load("small-llada"), length=8)
    fenced = "```python\ndef add(a, b):\n    return a + b\n```"
    monkeypatch.setattr(writer.model.tokenizer, "decode", lambda row: fenced)
    found = run_files(writer, [path], tmp_path / "run.json", allow_code=True)
    assert found is not None and found["questions"][0]["correct"]


@pytest.mark.parametrize(
    ("answer", "output", "score"),
    [
        ("2", "so \\boxed{2.0}", 1),
        ("2", "\\boxed{ 2 }.", 1),
        ("2", "$\\boxed{\\text{2}}$", 1),
        ("2", "first \\boxed{3}, then \\boxed{2}", 1),
        ("2", "\\boxed{20}", 0),
        ("2", "2", 0),
        ("2", "\\boxed{2", 0),
        ("\\frac{1}{2}", "\\boxed{\\dfrac12}", 1),
        ("\\frac{1}{2}", "\\boxed{0.5}", 1),
        ("-\\frac{1}{2}", "\\boxed{\\frac{-1}{2}}", 1),
        ("\\frac{3}{4}", "\\boxed{3/4}", 1),
        ("10,\\!080", "\\boxed{10080}", 1),
        ("1,2", "\\boxed{12}", 0),
        ("90^\\circ", "\\boxed{90}", 1),
        ("5", "\\boxed{5\\text{ cm}}", 1),
        ("\\text{Evelyn}", "\\boxed{Evelyn}", 1),
        ("(3, \\frac{\\pi}{2})", "\\boxed{\\left(3,\\frac{\\pi}{2}\\right)}", 1),
        ("2\\sqrt3", "\\boxed{2\\sqrt{3}}", 1),
    ],
)
def test_an_answer_of_math_may_be_written_in_several_ways(answer: str, output: str, score: int) -> None:
    assert METRICS["boxed"](output, [answer]) == score


def test_mbpp_keeps_its_test_split_alone(tmp_path: Path) -> None:
    path = tmp_path / "mbpp.jsonl"
    record = MINIATURES["mbpp"][0]
    path.write_text(
        "\n".join(json.dumps({**record, "task_id": i}) for i in (1, 10, 11, 510, 511, 600)), encoding="utf-8"
    )
    assert [one["id"] for one in built("mbpp", path)] == ["11", "510"]
    path.write_text(json.dumps({**record, "task_id": 2}), encoding="utf-8")
    with pytest.raises(TenutoError, match="no questions"):
        built("mbpp", path)


def test_the_protocol_lies_in_the_task_file_and_is_printed_beside_the_number(tmp_path: Path) -> None:
    def run(*arguments: Any) -> str:
        found = CliRunner().invoke(app, ["eval", *map(str, arguments)])
        assert found.exit_code == 0, found.output
        return found.stdout

    task, results = tmp_path / "renamed.jsonl", tmp_path / "run.json"
    run("build", "gsm8k", "--source", source("gsm8k", tmp_path), "-o", task)
    assert protocol_of(task) == TASKS["gsm8k"].told and "zero-shot" in TASKS["gsm8k"].told
    assert len(read_tasks(task, limit=1)) == 1
    out = run("lm", "small-llada", "--tasks-file", task, "--length", 8, "--factor", 1, "--sliding", "-o", results)
    assert f"Protocol of renamed: {TASKS['gsm8k'].told}." in out
    assert "8 tokens in a sliding window of 8, the factor rule with a factor of 1" in out
    assert json.loads(results.read_text(encoding="utf-8"))["settings"]["protocols"]["renamed"] == TASKS["gsm8k"].told


def test_the_papers_full_size_tasks_name_the_documented_commands() -> None:
    page = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    for _, command in FULL_SIZE.values():
        words = shlex.split(command)
        name = Path(words[words.index("--tasks-file") + 1]).stem
        assert words[words.index("--length") + 1] == str(TASKS[name].length)
        (documented,) = [
            line for line in page.splitlines() if f"--tasks-file {name}.jsonl" in line and "eval lm" in line
        ]
        assert {"--tasks-file", "--length"} <= set(shlex.split(documented))


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
    "content",
    [b"", b"\x1f\x8b", gzip.compress(b"{}" * 99, mtime=0)[:-9], gzip.compress(b"{}", mtime=0)[:12] + b"\xff" * 9],
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
    """The three commands, offline: a miniature of WikiText, small-llada, and a small GPT-2's features."""
    pytest.importorskip("sklearn")
    make_language_model(tmp_path / "gpt2")
    book = [" ".join(f"the {WORDS[(i * j) % 7]} and" for j in range(30)) for i in range(1, 25)]
    (tmp_path / "wiki.test.raw").write_text(" = Title = \n" + "\n".join(book), encoding="utf-8")
    task, results = tmp_path / "wikitext.jsonl", tmp_path / "wikitext.json"

    def run(*arguments: Any) -> str:
        found = CliRunner().invoke(app, ["eval", *map(str, arguments)])
        assert found.exit_code == 0, found.output
        return found.stdout[max(found.stdout.find("{"), 0) :]  # without transformers' progress bars

    run("build", "wikitext", "--source", tmp_path / "wiki.test.raw", "-o", task)
    model = Path(__file__).parents[3] / "weights" / "small-llada"
    sizes = ["--length", 8, "--block-length", 8, "--parallel", 0.3]
    said = run("lm", model, "--tasks-file", task, *sizes, "-o", results)
    assert "rouge" not in said and "24 texts" in said and "judge them with `tenuto lab eval mauve`" in said
    with pytest.raises(UsageError, match="texts without scores"):
        compare(results, results)
    asked = ["mauve", results, "--tasks-file", task, "--features", tmp_path / "gpt2", "--json"]
    value = json.loads(run(*asked))
    assert 0 < value["mauve"] <= 1 and value["texts"] == 24
    people = json.loads(results.read_text(encoding="utf-8"))
    answers = {one.id: one.answers[0] for one in read_tasks(task)}
    for one in people["questions"]:
        one["output"] = answers[one["id"]]
    results.write_text(json.dumps(people), encoding="utf-8")
    assert json.loads(run(*asked))["mauve"] > max(value["mauve"], 0.99)  # people write like people
    people["questions"][0]["output"] = " "
    results.write_text(json.dumps(people), encoding="utf-8")
    assert json.loads(run(*asked))["empty"] == 1
    told = CliRunner().invoke(app, ["eval", *map(str, asked[:-1])])
    assert "1 answer without any text" in told.stderr
    for one in people["questions"]:
        one["output"] = ""
    results.write_text(json.dumps(people), encoding="utf-8")
    refused = CliRunner().invoke(app, ["eval", *map(str, asked)])
    assert refused.exit_code and "prompts with themselves" in str(refused.exception)


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
