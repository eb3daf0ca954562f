"""Published tasks are built from their published files and can be asked; each on a miniature of the file."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tenuto.errors import TenutoError, UsageError
from tenuto_lab.full_size.published_tasks import KEY, NEEDLE, TASKS, built
from tenuto_lab.full_size.tasks import judged, read_tasks

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
}
WRONG = dict.fromkeys(RIGHT, "    return 7")


def source(name: str, folder: Path) -> Path:
    if name.startswith("needle"):
        path = folder / "book.txt"
        path.write_text(" ".join(f"Sentence {i} says nothing of note." for i in range(2000)), encoding="utf-8")
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
    if name == "cnn-dailymail":
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
