"""Language tasks: answers, likelihoods and scores are what they say, and two runs can be compared."""

import itertools
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import tenuto
from tenuto.cli import main
from tenuto.errors import CheckpointError, TenutoError, UsageError
from tenuto.models import shipped
from tenuto.models.llada import LLaDA, LLaDAConfig
from tenuto.sampling.masked import generate_text
from tenuto.text import LanguageModel
from tenuto_lab.full_size import tasks
from tenuto_lab.full_size.answer_metrics import METRICS, last_number, passes
from tenuto_lab.full_size.answers import Writer
from tenuto_lab.full_size.jobs import Worker
from tenuto_lab.full_size.likelihood import log_likelihood, masked_places
from tenuto_lab.full_size.paired_runs import compare, difference, mcnemar
from tenuto_lab.full_size.sandbox import isolation
from tenuto_lab.full_size.tasks import TaskResult, read_tasks, run_files
from tenuto_lab.judging.judges import problems

SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 24, "max_sequence_length": 48}


def shipped_or_skip(name: str) -> Path:
    try:
        return shipped(name)
    except CheckpointError:
        pytest.skip(f"{name} is not here")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small random language model that knows the shipped one's tokens."""
    beside, folder = shipped_or_skip("small-llada"), tmp_path_factory.mktemp("llada")
    config = json.loads((beside / "config.json").read_text()) | SMALL
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(beside / "tokenizer.json", folder)
    torch.manual_seed(0)
    network = LLaDA(LLaDAConfig(**{key: value for key, value in config.items() if key != "model_type"}))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_file({key: value.contiguous() for key, value in network.state_dict().items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def model(directory: Any) -> Any:
    return tenuto.load(directory)


def lines(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


# Likelihoods


def by_enumeration(network: Any, prompt: Any, text: Any) -> float:
    """The mean over every number of masks and every choice of places, one evaluation each."""
    mask, means = network.config.mask_token_id, []
    for count in range(1, len(text) + 1):
        values = []
        for places in itertools.combinations(range(len(text)), count):
            tokens = [*prompt, *(mask if i in places else token for i, token in enumerate(text))]
            likely = network(torch.tensor([tokens]))[0].log_softmax(-1)
            values.append(sum(float(likely[len(prompt) + i, text[i]]) for i in places) * len(text) / count)
        means.append(sum(values) / len(values))
    return sum(means) / len(means)


def test_the_estimate_of_a_likelihood_is_right_on_average(model: Any) -> None:
    prompt, text = [2, 300, 40], [17, 512, 99]
    with torch.no_grad():
        wanted = by_enumeration(model.network, prompt, text)
    found = log_likelihood(model.network, prompt, text, draws=3000, batch=500)
    assert found == pytest.approx(wanted, rel=0.01)


def test_one_token_needs_one_draw_and_is_exact(model: Any) -> None:
    logits = model.network(torch.tensor([[2, 300, model.config.mask_token_id]]))[0, -1]
    assert log_likelihood(model.network, [2, 300], [17]) == pytest.approx(float(logits.log_softmax(-1)[17]), rel=1e-5)
    assert log_likelihood(model.network, [2], []) == 0


def test_estimates_depend_on_their_seed_alone(model: Any) -> None:
    first, again, other = (
        log_likelihood(model.network, [2], [5, 6, 7, 8], draws=8, batch=batch, seed=seed)
        for batch, seed in ((8, 1), (3, 1), (8, 2))
    )
    assert first == pytest.approx(again, rel=1e-5) and first != pytest.approx(other, rel=1e-5)


def test_every_number_of_masks_is_drawn_alike() -> None:
    counts = torch.cat([masked_places(5, 10, seed).sum(1) for seed in range(20)])
    assert torch.bincount(counts, minlength=6).tolist() == [0, 40, 40, 40, 40, 40]


# Answers


def test_answers_are_those_of_the_sampler_with_and_without_a_schedule(model: Any) -> None:
    prompts = ["Tom has 12 apples", "The"]
    schedule = tenuto.schedule(model, steps=4, budget=0.5, blocks=2)
    for held in (None, schedule):
        answers = Writer(model, held, length=8, steps=4, block_length=4).answers(prompts)
        wanted = generate_text(model, prompts, schedule=held, steps=4, length=8, block_length=4)
        assert [answer.text for answer in answers] == wanted
    assert Writer(model, schedule, length=8).sampling.block_length == 4  # as the schedule was made
    with pytest.raises(UsageError, match="for 4 steps, not for 8"):
        Writer(model, schedule, length=8, steps=8)


def test_parallel_decoding_means_the_same_as_in_the_product() -> None:
    """The command for evaluation takes blocks of 32 and the KV cache by default, as `tenuto generate` and `chat` do."""
    model = tenuto.load("small-llada")
    prompts = ["sort: 42 48 7 25 53 40 ->"]
    writer = Writer(model, length=64, parallel=0.9)
    assert writer.sampling.block_length == 32 and writer.schedule is not None and writer.schedule.keep == "keys"
    wanted = LanguageModel(model).generate(prompts, length=64, parallel=0.9)
    assert [answer.text for answer in writer.answers(prompts)] == list(wanted)
    assert "in blocks of 32" in writer.protocol and "the first 4 and the powers of two" in writer.protocol
    assert "everything computed" in Writer(model, length=64, parallel=0.9, every=1).protocol
    assert "8 tokens in one block, 4 steps, everything computed" in Writer(model, length=8, steps=4).protocol


def test_only_the_answer_is_counted_and_it_ends_where_it_should(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, end = Writer(model, length=6, steps=1), model.config.eos_token_id
    tokens = model.tokenizer.encode("one. two. three")[1:]
    row = (tokens + [end] * 40)[: max(6, len(tokens) + 1)]
    assert writer._written(row, [], False).tokens == len(tokens)
    assert writer._written(row, ["two", "."], False).text.endswith("one")
    long = writer.answers(["word " * 100])[0]
    assert long.prompt_cut and long.tokens <= 6
    assert not writer.answers(["word"])[0].prompt_cut


# Scores


@pytest.mark.parametrize(
    ("metric", "output", "answers", "score"),
    [
        ("exact", " 76\n", ["76"], 1),
        ("exact", "76 apples", ["76"], 0),
        ("contains", "it is 76.", ["no", "76"], 1),
        ("numeric", "3 + 4 is 7, so $1,234.50", ["the answer is #### 1234.5"], 1),
        ("numeric", "7 and then 8", ["7"], 0),
        ("numeric", "-5", ["5"], 0),
        ("numeric", "none", ["none"], 0),
    ],
)
def test_metrics(metric: str, output: str, answers: Any, score: int) -> None:
    assert METRICS[metric](output, answers) == score


def test_the_last_number_of_a_text() -> None:
    assert [float(last_number(text) or 0) for text in ("1 of 2.", "a -3", "x=.5", "1,000")] == [2, -3, 0.5, 1000]


def test_rouge_takes_the_answer_that_fits_best() -> None:
    pytest.importorskip("rouge_score")
    assert METRICS["rouge-l"]("the cat sat", ["a dog", "the cat sat"]) == 1
    assert METRICS["rouge-l"]("the cat", ["the cat sat down"]) == pytest.approx(2 * 1 * 0.5 / 1.5)


def test_a_program_passes_its_tests_in_time_or_not() -> None:
    assert passes("    return a + b", ["assert add(1, 2) == 3"], before="def add(a, b):\n") == 1
    assert passes("Here:\n```python\ndef f():\n    return 1\n```\nthat is it", ["assert f() == 1"]) == 1
    assert passes("def f(): return 2", ["assert f() == 1"]) == 0
    assert passes("while True: pass", [""], seconds=0.5) == 0


# Task files


def test_a_task_file_is_read_strictly(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "t.jsonl", {"prompt": "a", "answer": [1, "b"], "metric": "numeric"}, {"prompt": "c", "answer": "d"}
    )
    first, second = read_tasks(path)
    assert (first.id, first.answers, first.metric, second.metric) == ("t/1", ("1", "b"), "numeric", "exact")
    assert len(read_tasks(path, limit=1)) == 1
    for record, message in (
        ({"prompt": "a"}, "line 1: there is no answer"),
        ({"prompt": "a", "answer": "b", "metric": "vibes"}, "the metric is one of exact"),
        ({"prompt": "a", "answer": "b", "hint": "c"}, "'hint' is none of the fields"),
    ):
        with pytest.raises(TenutoError, match=message):
            read_tasks(lines(path, record))
    with pytest.raises(TenutoError, match="twice"):
        read_tasks(lines(path, *[{"id": 1, "prompt": "a", "answer": "b"}] * 2))


def test_code_is_run_only_if_that_is_allowed(model: Any, tmp_path: Path) -> None:
    path = lines(tmp_path / "code.jsonl", {"prompt": "def f", "answer": "pass", "metric": "pass@1"})
    writer = Writer(model, length=4, steps=1)
    with pytest.raises(UsageError, match="--allow-code-execution"):
        run_files(writer, [path], tmp_path / "r.json")
    allowed = run_files(writer, [path], tmp_path / "r.json", allow_code=True)
    assert allowed is not None and allowed["questions"][0]["metric"] == "pass@1"
    assert allowed["provenance"]["code_run_in"] == isolation().name  # which sandbox, if any


def test_processes_share_the_questions_and_the_results_are_one(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lines(tmp_path / "q.jsonl", *({"prompt": f"word {i}", "answer": "x"} for i in range(5)))
    writer = Writer(model, length=4, steps=1, batch=2)
    alone = run_files(writer, [path], tmp_path / "alone.json", worker=Worker())
    asked: list[str] = []
    answers = writer.answers

    def noted(prompts: Any, until: Any) -> Any:
        asked.extend(prompts)
        if len(asked) > 4:  # the first process fails at its last part
            raise KeyboardInterrupt
        return answers(prompts, until)

    monkeypatch.setattr(writer, "answers", noted)
    with pytest.raises(KeyboardInterrupt):
        run_files(writer, [path], tmp_path / "shared.json", worker=Worker(0, 2))
    monkeypatch.setattr(writer, "answers", answers)
    shared = run_files(writer, [path], tmp_path / "shared.json", worker=Worker(1, 2))
    assert shared is not None and alone is not None
    assert shared["questions"] == alone["questions"] and len(shared["questions"]) == 5
    assert not list(tmp_path.glob("*.parts"))
    with pytest.raises(TenutoError, match="holds another job: limit"):
        run_files(writer, [path], tmp_path / "shared.json", limit=4)


# Comparisons


def results(path: Path, scores: list[float], metric: str = "exact", prompt: str = "p") -> Path:
    questions = [
        {"id": f"t/{i}", "task": "t", "metric": metric, "prompt_sha256": prompt, "score": score}
        for i, score in enumerate(scores)
    ]
    path.write_text(json.dumps({"questions": questions}))
    return path


def test_mcnemar_counts_the_questions_that_one_run_alone_got_right() -> None:
    assert mcnemar(0, 0) == 1 and mcnemar(3, 3) == 1
    assert mcnemar(0, 5) == pytest.approx(2 / 32)
    assert mcnemar(1, 9) == pytest.approx(2 * 11 / 1024)


def test_line_breaks_that_json_allows_within_a_string_do_not_end_a_question(tmp_path: Path) -> None:
    said = "one\u2028two\x85three"
    (tmp_path / "news.jsonl").write_text(
        json.dumps({"prompt": said, "answer": "x"}, ensure_ascii=False) + "\r\n\n", encoding="utf-8"
    )
    assert [question.prompt for question in read_tasks(tmp_path / "news.jsonl")] == [said]


def test_right_and_wrong_answers_have_an_interval_even_if_all_are_right() -> None:
    results = [TaskResult(str(i), "sums", "exact", "", "", 1.0, True, 1) for i in range(2)]
    value, low, high = tasks.record({}, results, {})["tasks"]["sums, exact"]["score"]
    assert (value, high) == (1.0, 1.0) and 0.3 < low < 0.4  # Wilson's


def test_a_difference_has_an_interval_and_a_p_value(tmp_path: Path) -> None:
    first, second = [1.0] * 10 + [0.0] * 10, [0.0] * 8 + [1.0] * 2 + [0.0] * 10
    found = compare(results(tmp_path / "a.json", first), results(tmp_path / "b.json", second))[0]
    assert (found.questions, found.only_first, found.only_second) == (20, 8, 0)
    assert found.difference[0] == pytest.approx(-0.4) and found.difference[2] < 0
    assert found.p == pytest.approx(2 / 2**8)
    graded = difference("t", [0.2, 0.4, 0.6], [0.3, 0.5, 0.7])
    assert graded.test == "sign flips" and graded.p == pytest.approx(0.25, abs=0.02)


def test_only_runs_on_the_same_questions_are_compared(tmp_path: Path) -> None:
    first = results(tmp_path / "a.json", [1.0, 0.0])
    with pytest.raises(UsageError, match="only one has t/2"):
        compare(first, results(tmp_path / "b.json", [1.0, 0.0, 1.0]))
    with pytest.raises(UsageError, match="in different words"):
        compare(first, results(tmp_path / "b.json", [1.0, 0.0], prompt="q"))
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(TenutoError, match="no results of questions"):
        compare(first, tmp_path / "c.json")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"score": "1"}, r"questions\[1\].score should be a number, not text"),
        ({"score": float("nan")}, r"questions\[1\].score should be a number from"),
        ({"id": ["t/1"]}, r"questions\[1\].id should be text, not a list"),
        (None, r"questions\[1\] should be an object, not null"),
    ],
)
def test_a_result_file_is_read_strictly(tmp_path: Path, change: Any, sentence: str) -> None:
    first, second = results(tmp_path / "a.json", [1.0, 0.0]), results(tmp_path / "b.json", [1.0, 0.0])
    record = json.loads(second.read_text())
    record["questions"][1] = None if change is None else {**record["questions"][1], **change}
    second.write_text(json.dumps(record))
    with pytest.raises(TenutoError, match=f"b.json is no result file: {sentence}"):
        compare(first, second)


# Commands, with the shipped model


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: Any) -> Any:
        monkeypatch.setattr(sys, "argv", ["tenuto", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run


def test_the_shipped_model_adds_up_and_two_runs_are_compared(command: Any, tmp_path: Path) -> None:
    place = shipped_or_skip("small-llada")
    model = tenuto.load("small-llada")
    decode = model.tokenizer.decode
    posed = problems(place)["sums-5"][:3]
    records = ({"prompt": decode(one["prompt"]), "answer": decode(one["answer"]), "metric": "numeric"} for one in posed)
    lines(tmp_path / "sums.jsonl", *records)
    options = ("small-llada", "--tasks-file", "sums.jsonl", "--length", 8)
    status, out, err = command("lab", "eval", "lm", *options, "--steps", 8, "-o", "eight.json")
    assert status == 0, err
    assert "sums, numeric: 1.000" in out and "tokens an answer" in out
    assert command("lab", "eval", "lm", *options, "--steps", 1, "-o", "one.json")[0] == 0
    stored = json.loads((tmp_path / "eight.json").read_text())
    assert [one["correct"] for one in stored["questions"]] == [True] * 3
    assert all(1 <= one["tokens"] <= 8 for one in stored["questions"])
    status, out, _ = command("lab", "eval", "compare", "eight.json", "one.json")
    assert status == 0 and "sums, numeric: 1.000 →" in out and "p = " in out
    assert command("lab", "eval", "lm", *options, "--tasks", "gsm8k", "-o", "x.json")[0] == 2


# The harness


@pytest.fixture(scope="module")
def lm(model: Any) -> Any:
    pytest.importorskip("lm_eval")
    from tenuto_lab.full_size.harness import TenutoLM

    return TenutoLM(model, length=6, steps=2, draws=4, batch_size=2)


def request(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments)


def test_the_harness_is_told_likelihoods_and_what_would_be_written(lm: Any, model: Any) -> None:
    from lm_eval.api.registry import get_model

    assert get_model("tenuto") is type(lm)
    prompt = model.tokenizer.encode("The man")
    likely = tenuto.sampling.masked.generate_tokens(model.network, [prompt], steps=2, length=2, block_length=2)
    written = likely[0].tolist()
    assert lm._would_write(prompt, written) and not lm._would_write(prompt, [written[0], written[1] ^ 1])
    value, greedy = lm.loglikelihood([request("The man ", "sat")])[0]
    assert value < 0 and isinstance(greedy, bool)
    before, text = lm._split("The man ", "sat")
    assert model.tokenizer.decode(before) == "The man" and model.tokenizer.decode(text) == " sat"
    assert value == lm.loglikelihood([request("x", "y"), request("The man ", "sat")])[1][0]  # whatever else is asked
    assert lm.loglikelihood_rolling([request("word " * 60)])[0] < 0


def test_the_harness_gets_answers_until_their_end(lm: Any, model: Any) -> None:
    asked = [request("The", {"until": ["\n"]}), request("A man", {"until": "."}), request("So", {"do_sample": False})]
    answers = lm.generate_until(asked)
    alone = Writer(model, length=6, steps=2, batch=2).answers(["The", "A man"], [["\n"], ["."]])
    assert answers[:2] == [answer.text for answer in alone] and len(answers) == 3
    with pytest.raises(UsageError, match="at a temperature"):
        lm.generate_until([request("The", {"temperature": 0.8, "do_sample": True})])


def test_a_task_of_the_harness_runs_and_keeps_every_question(
    lm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.tasks import TaskManager

    from tenuto_lab.full_size.tasks import run_named

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    data = lines(tmp_path / "data.jsonl", *({"question": f"word {i}", "target": "x"} for i in range(3)))
    task = {
        "task": "words",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(tmp_path / "cache")},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{target}}",
        "generation_kwargs": {"until": ["\n"], "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    places = TaskManager(include_defaults=False)  # to look through the harness's thousands takes a while
    found = run_named(lm, [task], tmp_path / "r.json", limit=2, fewshot=0, task_manager=places)
    assert found is not None
    assert [one["id"] for one in found["questions"]] == ["words/0/none/exact_match", "words/1/none/exact_match"]
    assert all(one["tokens"] is not None and one["correct"] in (True, False) for one in found["questions"])
    assert found["harness"]["words"]["exact_match,none"] == found["tasks"]["words/none, exact_match"]["score"][0]
    assert sorted(path.name for path in tmp_path.glob("r.json*")) == ["r.json"]
