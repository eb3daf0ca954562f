"""The training of the larger small LLaDA: its problems, its rows, and both ways of decoding that measure it."""

import json
import operator
import random
import re
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tenuto.errors import UsageError
from tenuto.models import load
from tenuto.models.llada import LLaDA, LLaDAConfig
from tenuto.sampling.masked import generate_tokens
from training import evaluate_small_llada as evaluation
from training import loop, quantise, reasoning_text, safe_code
from training import reasoning_rows as rows
from training import reasoning_tasks as tasks
from training import train_small_llada as small
from training.llada_text import BOS, BRACKETS, EOS, MASK

CPU = torch.device("cpu")
BLOCK = rows.BLOCK
VOCABULARY = 1100
TINY = replace(
    small.SHIPPED,
    d_model=16,
    n_layers=2,
    n_heads=2,
    n_kv_heads=2,
    mlp_hidden_size=24,
    vocab_size=VOCABULARY,
    embedding_size=VOCABULARY,
)
LESSONS = rows.Lessons()
SETTINGS = loop.Settings(seconds=60, batch=3 * LESSONS.smallest_part, compile=False, max_steps=1)


def invented_book(seed: int) -> str:
    chance = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "in", "or", "ul")]

    def sentence() -> str:
        words = ["".join(chance.choices(syllables, k=chance.randint(1, 3))) for _ in range(chance.randint(4, 12))]
        return " ".join(words).capitalize() + "."

    return "\n\n".join(" ".join(sentence() for _ in range(20)) for _ in range(100))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small-llada")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    (folder / "books").mkdir()
    for i in range(2):
        (folder / "books" / f"{i}.md").write_text(invented_book(i), encoding="utf-8")
    told = [
        {"question": f"What is {i} and {i}?", "answer": f"It is <<{i}+{i}={2 * i}>>{2 * i}.\n#### {2 * i}"}
        for i in range(200)
    ]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, told)), encoding="utf-8")
    python = Path(small.__file__).parent
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reasoning_text, "SAMPLES", 60)
        patched.setattr(reasoning_text, "HELD_OUT", 0.1)
        reasoning_text.build(folder / "books", python, folder / "train.jsonl", folder / "text.npz", VOCABULARY, 10**6)
    return folder / "text.npz"


@pytest.fixture(scope="module")
def library(data: Path) -> reasoning_text.Library:
    return reasoning_text.load(data)


@pytest.fixture(scope="module")
def checkpoint(folder: Path, library: reasoning_text.Library) -> Path:
    trained = small.train_small(library, TINY, SETTINGS, CPU, 120)
    small.save(folder / "model", trained, TINY, SETTINGS, library)
    return folder / "model"


# Problems


def solved(task: str, prompt: str) -> str:
    """The answer, found in another way than the one the problem was made in."""
    told = prompt.split(": ", 1)[-1].removesuffix(" ->").removesuffix(" =")
    numbers = [int(number) for number in re.findall(r"\d+", prompt)]
    if task == "sums":
        return f" {sum(numbers)}"
    if task == "rows":
        pairs = [tuple(map(int, row.split(" + "))) for row in told.split(", ")]
        return " " + ", ".join(f"{a} + {b} = {a + b}" for a, b in pairs)
    if task == "totals":
        words = re.findall(r"(\w+) \d", told)
        return "".join(f" {word} {str(sum(numbers[: i + 1]))[-1]}" for i, word in enumerate(words))
    if task == "follow":
        arrows, word = told.split("; ")
        leads, answer = dict(arrow.split() for arrow in arrows.split(", ")), ""
        while word in leads:
            answer += f" {(word := leads[word])}"
        return answer
    if task == "reverse":
        return " " + " ".join(told.split(" ")[::-1])
    if task == "sort":
        return " " + " ".join(map(str, np.sort(numbers)))
    if task == "alphabet":
        return " " + " ".join(str(word) for word in np.sort(told.split()))
    if task == "brackets":
        while told != (told := re.sub(r"\(\)|\[\]|\{\}|<>", "", told)):  # what is closed already
            pass
        return " " + told[::-1].translate(str.maketrans(BRACKETS))
    if task == "lookup":
        entries, asked = told.split("; ")
        return "".join(f" {dict(entry.split() for entry in entries.split(', '))[word]}" for word in asked.split())
    if task == "codes":
        codes = dict(re.findall(r"The code of (\w+) is (\d{3})\.", prompt))
        return "".join(f" {codes[word]}" for word in re.findall(r"of (\w+) and (\w+)\?", prompt)[0])
    raise AssertionError(f"no other way is known for {task}")


@pytest.mark.parametrize("task", [name for name in tasks.TASKS if name not in ("code", "story")])
def test_answers_are_right(task: str) -> None:
    for size in (tasks.TASKS[task].least, *tasks.TASKS[task].levels):
        for posed in islice(tasks.problems(task, 0, True, size), 40):
            assert posed.answer == solved(task, posed.prompt)


def test_stories_are_worked_out_step_by_step() -> None:
    does = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
    for posed in islice(tasks.problems("story", 0, True), 200):
        steps = re.findall(r"(\d+) (.) (\d+) = (\d+)", posed.answer)
        assert all(does[sign](int(a), int(b)) == int(c) for a, sign, b, c in steps)
        numbers = set(re.findall(r"\d+", posed.prompt)) | {"2"} | {c for *_, c in steps}  # 2: doubled or halved
        assert {number for a, _, b, _ in steps for number in (a, b)} <= numbers
        assert posed.answer.endswith(f" The answer is {steps[-1][3]}.")


def test_functions_compute_what_python_computes() -> None:
    for posed in islice(tasks.problems("code", 0, True), 100):
        names: dict[str, object] = {}
        exec(posed.prompt + posed.answer, names)  # made by ourselves
        function = names["f"]
        assert callable(function)
        assert tasks.behaviour(posed.prompt + posed.answer) == [function(*pair) for pair in tasks.INPUTS]
        assert tasks.right("code", posed, posed.answer.replace("c = c + ", "c += "))
        assert not tasks.right("code", posed, posed.answer.replace("return c", "return c + 1"))
        assert not tasks.right("code", posed, posed.answer.replace("return c", "return"))


@pytest.mark.parametrize(
    "source",
    [
        "def f(a): return __import__('os')",
        "def f(a): return a.real",
        "def f(a): return a ** 9",
        "def f(a):\n    while 1: pass",
        "def f(a): return [a][0]",
        "def f(a, b=open('x')): return a",
        "def f(a): return a // 0",
        "def f(a): return b",
        "def f(a): a",
        "import os",
        "def f(a): return " + "(" * 500 + "a" + ")" * 500,
        "def f(a): return " + "-" * 3000 + "a",
        "def f(a): return a" + " * 999999" * 9,
    ],
)
def test_code_beyond_the_language_is_refused(source: str) -> None:
    with pytest.raises(safe_code.CodeError):
        safe_code.run_function(source, [3])


def test_training_and_held_out_problems_have_nothing_in_common() -> None:
    for task, kind in tasks.TASKS.items():
        seen, kept = (
            {one.key for one in islice(tasks.problems(task, 1, held_out, kind.least), 400)}
            for held_out in (False, True)
        )
        assert not seen & kept, task


def test_problems_are_spelled_as_a_user_would_type_them(library: reasoning_text.Library) -> None:
    assert library.tokenizer.encode("48 ([<", add_special_tokens=False).tokens == ["4", "8", "Ġ", "(", "[", "<"]
    for task in tasks.TASKS:
        for posed in islice(tasks.problems(task, 0, True), 20):
            assert library.encode(posed.prompt) + library.encode(posed.answer) == library.encode(
                posed.prompt + posed.answer
            )


def test_needles_are_in_the_text(library: reasoning_text.Library) -> None:
    for prompt, answer in islice(reasoning_text.needles(library, 0, True, 256), 20):
        text = library.decode(prompt)
        codes = dict(re.findall(r"The code of (\w+) is (\d{4})\.", text))
        asked = text.rsplit("the code of ", 1)[1].split("?")[0].split(" and ")
        assert library.decode(answer) == "".join(f" {codes[word]}" for word in asked)
        assert len(codes) == reasoning_text.HIDDEN and len(prompt) + len(answer) <= 256


# Training


def test_a_task_of_a_larger_share_has_more_problems(library: reasoning_text.Library) -> None:
    sizes, lengths = rows.parse_sizes(["sums=2-2", "sort=2-2"]), rows.parse_lengths("24")
    alone = library._replace(train={}, held_out={})
    made = rows.Posing(alone, 20, 0, rows.Lessons(sizes, lengths, rows.parse_shares(["sums=3"]))).collect()
    begin = [alone.decode(made.tokens[at : at + 8].tolist())[:3] for at in made.offset]
    assert begin.count("add") == 60 and begin.count("sor") == 20


def test_batches_are_whole_rows_of_every_length(library: reasoning_text.Library) -> None:
    made = rows.Posing(library, 120, 0, LESSONS).collect()
    assert (np.diff(made.length) >= 0).all() and made.length[-1] <= reasoning_text.CONTEXT
    stream = rows.batches(library, made, LESSONS.smallest_part, 0, CPU, LESSONS)
    seen = set()
    for parts in islice(stream, 6):
        for batch in parts:
            assert batch.noisy.numel() == LESSONS.smallest_part
            seen.add(batch.noisy.shape[1])
            hidden = batch.noisy != batch.clean
            assert (batch.noisy[hidden] == MASK).all() and (batch.clean[:, 0] == BOS).all() and not hidden[:, 0].any()
            assert hidden[batch.weight > 0].all()
    assert seen == {length for lengths in rows.LENGTHS for length in lengths}


def test_masks_look_as_they_do_when_blocks_are_written() -> None:
    tokens = torch.full((4000, 128), 9)
    start, end = torch.full((4000,), 20), torch.full((4000,), 90)
    tokens[:, 89:] = EOS
    noisy, _, weight = rows.masked(tokens, start, end, torch.Generator().manual_seed(0))
    hidden = noisy == MASK
    assert 0.87 < (~hidden[:, :20].any(1)).float().mean() < 0.94  # the prompt is there
    blocks = {first: hidden[:, first + BLOCK :].all(1) & ~hidden[:, :first].any(1) for first in range(20, 90, BLOCK)}
    assert all(some.float().mean() > 0.07 for some in blocks.values())
    assert weight.sum() == pytest.approx(1, abs=0.15)
    text = rows.masked(tokens, start * 0, start * 0 + 128, torch.Generator().manual_seed(0))
    assert text.weight.sum() == pytest.approx(1, abs=0.1) and not (text.noisy[:, 0] == MASK).any()


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_the_layers_as_trained_compute_what_the_network_computes(kv_heads: int) -> None:
    network = LLaDA(replace(TINY, n_kv_heads=kv_heads))
    network.initialize_weights()
    tokens, weight = torch.randint(3, VOCABULARY, (3, 40)), torch.rand(3, 40)
    batch = rows.Batch(tokens, tokens.flip(1), weight)
    losses = F.cross_entropy(network(tokens).flatten(0, 1), batch.clean.flatten(), reduction="none")
    torch.testing.assert_close(small.Layers(network, False).loss(batch), (losses * weight.flatten()).sum())


def test_training_goes_on_from_a_checkpoint(checkpoint: Path, library: reasoning_text.Library, tmp_path: Path) -> None:
    still = replace(SETTINGS, lr=0.0, ema=0.0)
    again = small.train_small(library, TINY, still, CPU, 120, start=checkpoint)
    stored = load(str(checkpoint)).network.state_dict()
    for name, value in again.state.items():
        assert torch.equal(value.bfloat16(), stored[name].bfloat16()), name
    before = json.loads((checkpoint / "loss.json").read_text())
    small.save(tmp_path, again, TINY, still, library, before)
    assert json.loads((tmp_path / "loss.json").read_text())["before"]["steps"] == 1


def test_chosen_tasks_alone_from_some_blocks_saved_on_the_way(checkpoint: Path, tmp_path: Path) -> None:
    lessons = rows.Lessons(rows.parse_sizes(["sums=1-2", "sort=2-3"]), rows.parse_lengths("16,24/32"))
    alone = reasoning_text.load(checkpoint / "tokenizer.json")
    made = rows.Posing(alone, 40, 0, lessons).collect()
    texts = [
        alone.decode(made.tokens[at : at + size].tolist()) for at, size in zip(made.offset, made.length, strict=True)
    ]
    assert {text.split(":")[0] for text in texts} == {"add", "sort"}
    assert max(len(number) for text in texts for number in re.findall(r"\d+", text.split("=")[0])) == 2
    kept: list[loop.Trained] = []
    settings = loop.Settings(60, 2 * lessons.smallest_part, compile=False, max_steps=2, keep_every=0.0)
    config = replace(TINY, n_layers=1, max_sequence_length=64)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "READ_EVERY", 1)
        trained = small.train_small(alone, config, settings, CPU, 40, checkpoint, lessons, [1], kept.append)
    assert trained.steps == 2 and kept[0].interrupted and kept[0].steps == 1
    before = load(checkpoint).network.state_dict()
    begun = small.begun_with(before, [1])
    mlp = "model.transformer.blocks.{}.ff_proj.weight"
    assert torch.equal(begun[mlp.format(0)], before[mlp.format(1)]) and mlp.format(1) not in begun
    small.save(tmp_path, trained, config, settings, alone, None, lessons)
    assert json.loads((tmp_path / "loss.json").read_text())["sizes"] == {"sums": [1, 2], "sort": [2, 3]}
    assert evaluation.levels({"sums": [1, 2]}) == {"sums": ((1, 2), "digits")}
    for wrong in ("sums", "sums=3-1", "verbs=1-2"):
        with pytest.raises(UsageError, match="sizes of a task"):
            rows.parse_sizes([wrong])
    for wrong in ("sums", "sums=0", "sums=x", "verbs=2"):
        with pytest.raises(UsageError, match="how often a task comes"):
            rows.parse_shares([wrong])
    with pytest.raises(UsageError, match="lengths of rows"):
        rows.parse_lengths("24;32")
    with pytest.raises(UsageError, match="no block 7"):
        small.begun_with(before, [7])


def test_a_batch_that_does_not_divide_is_refused(library: reasoning_text.Library) -> None:
    with pytest.raises(UsageError, match="multiple of 9216"):
        small.train_small(library, TINY, replace(SETTINGS, batch=1000), CPU, 4)


def test_the_model_has_thirty_million_parameters_and_fits_into_four_files() -> None:
    with torch.device("meta"):
        parameters = sum(p.numel() for p in LLaDA(small.SHIPPED).parameters())
    assert parameters > 30e6 and 2 * parameters < 4 * 16 * 2**20


# Evaluation


@pytest.fixture
def network() -> LLaDA:
    torch.manual_seed(1)
    made = LLaDA(TINY).requires_grad_(False)
    for parameter in made.parameters():
        if parameter.dim() == 2:
            parameter.normal_(std=0.4)
    made.parts()[-1].weight.mul_(4)  # some tokens are likely, others are not
    return made


def prompts_of(library: reasoning_text.Library) -> list[list[int]]:
    return [[BOS, *library.encode(one.prompt)] for one in islice(tasks.problems("sort", 3, True), 4)]


def test_full_inference_is_the_package_s(network: LLaDA, library: reasoning_text.Library) -> None:
    prompts = prompts_of(library)
    expected = generate_tokens(network, prompts, steps=64, length=64, block_length=BLOCK, stop_at_eos=True)
    written = evaluation.write_full(network, prompts, 64)
    assert written.tokens == [evaluation.until_end(row) for row in expected.tolist()]


def test_threshold_decoding_is_the_rule_row_by_row(network: LLaDA, library: reasoning_text.Library) -> None:
    prompts = prompts_of(library)
    written = evaluation.write_by_threshold(network, prompts, 64)
    for prompt, answer, steps in zip(prompts, written.tokens, written.steps, strict=True):
        row, count = [*prompt, *[MASK] * 64], 0
        for first in range(len(prompt), len(prompt) + 64, BLOCK):
            while MASK in row[first : first + BLOCK] and EOS not in row[len(prompt) : first]:
                chances = network(torch.tensor([row]))[0].softmax(-1).index_fill(-1, torch.tensor([MASK]), -1.0)
                best = {i: chances[i].max().item() for i in range(first, first + BLOCK) if row[i] == MASK}
                for i, chance in best.items():
                    if chance > 0.9 or i == max(best, key=lambda place: best[place]):
                        row[i] = int(chances[i].argmax())
                count += 1
        body = row[len(prompt) :]
        assert answer == evaluation.until_end([EOS if token == MASK else token for token in body]) and steps == count
    assert min(written.steps) < 60  # some steps wrote several


def test_intervals_and_verdicts() -> None:
    assert evaluation.interval(80, 100) == (0.7112, 0.8666)
    assert [evaluation.verdict(share) for share in (0.99, 0.8, 0.3)] == [
        "cannot tell: saturated",
        "can tell",
        "cannot tell: too hard",
    ]


def test_evaluation_writes_what_benchmarks_need(
    checkpoint: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"sums": ((4,), "digits"), "needles": ((256,), "tokens")}
    monkeypatch.setattr(evaluation, "levels", lambda trained, steps=8: dict(few))
    monkeypatch.setattr(evaluation, "STORED", 2)
    monkeypatch.setattr(evaluation, "TEXT_LENGTH", 32)
    monkeypatch.setattr(evaluation, "TEXT_ROWS", 2)
    result = evaluation.evaluate(checkpoint, data, 2, CPU, 0, 4096, tmp_path, dtype=torch.float32)
    assert set(result["tasks"]) == {"sums-4", "needles-256"} and result["text_loss"] > 0
    assert result["tasks"]["sums-4"]["full"]["right"] == "00"
    stored = json.loads((tmp_path / "problems.json").read_text())
    assert set(stored["problems"]) == {"sums-4", "needles-256", "text"} and stored["lengths"]["sums-4"] == BLOCK
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| sums | 4 digits | 16 |" in card and "PSF licence" in card
    assert "add: " in (tmp_path / "samples.txt").read_text(encoding="utf-8")
    alone = evaluation.evaluate(checkpoint, checkpoint / "tokenizer.json", 2, CPU, 0, 4096, tmp_path)
    assert set(alone["tasks"]) == {"sums-4"} and "text_loss" not in alone
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "# LLaDA on made-up reasoning" in card and "PSF licence" not in card
    late = evaluation.evaluate(checkpoint, data, 2, CPU, 0, 4096, tmp_path, seconds=0.0, dtype=torch.float32)
    assert not late["tasks"]


def test_levels_are_found_by_threshold_decoding_first(
    network: LLaDA, library: reasoning_text.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def right_up_to(library: Any, task: str, questions: Any, written: Any) -> dict[str, float]:
        size = len(questions[0].posed.key.split())
        asked.append(f"{task}-{size}")
        return {"accuracy": 1.0 if size < 9 else 0.8 if size < 11 else 0.1}

    monkeypatch.setattr(evaluation, "measured", right_up_to)
    every = {"sort": (tuple(range(2, 30)), "numbers")}
    found = evaluation.scouted(network, library, every, 2, 0, 4096, None)
    assert list(found) == asked and len(asked) <= 5 and evaluation.nearest(found)["sort"] in (9, 10)
    assert not evaluation.scouted(network, library, every, 2, 0, 4096, -1.0)
    start = next(evaluation.ladder({}, every, 1, {"sort": 9}))
    assert start == ("sort", 9, "numbers")
    assert not list(evaluation.ladder({"sort-9": 0.8}, every, enough=1, first={"sort": 9}))
    further = next(evaluation.ladder({"sort-9": 0.3}, every, enough=1, first={"sort": 9}))
    assert 2 <= further[1] < 9


def test_weights_in_8_bits_load_as_a_llada_and_the_loss_is_told(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "levels", lambda trained, steps=8: {"sums": ((2,), "digits")})
    copied = Path(shutil.copytree(checkpoint, tmp_path / "trained"))
    evaluation.evaluate(copied, copied / "tokenizer.json", 2, CPU, 0, 4096, copied)
    quantise.main(copied, tmp_path / "small", samples=2, batch_tokens=4096, device="cpu", seed=0)
    one, other = (load(str(path)).network.state_dict() for path in (copied, tmp_path / "small"))
    for name, value in one.items():
        assert (value.float() - other[name].float()).abs().max() <= value.float().abs().max() / 100, name
    record = json.loads((tmp_path / "small" / "quantised.json").read_text())
    assert record["levels"]["sums-2"]["problems"] == 2 and record["bytes"][1] < record["bytes"][0]
    assert "## Stored in 8 bits" in (tmp_path / "small" / "README.md").read_text(encoding="utf-8")
    found = json.loads((copied / "evaluation.json").read_text())
    found["tasks"]["sums-2"]["verdict"] = "can tell"
    (copied / "evaluation.json").write_text(json.dumps(found))
    all_of_them = json.loads((copied / "problems.json").read_text())
    quantise.shorten_problems(copied, 1)
    stored = json.loads((copied / "problems.json").read_text())
    assert stored["problems"]["sums-2"] == all_of_them["problems"]["sums-2"][:1]
    assert stored["provenance"] == all_of_them["provenance"] and stored["lengths"] == {"sums-2": BLOCK}
    assert "holds the first 1 problems of the levels" in (copied / "README.md").read_text(encoding="utf-8")


def test_a_training_that_was_killed_goes_on_as_if_nothing_had_happened(
    library: reasoning_text.Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "READ_EVERY", 1)
    lessons = rows.Lessons(rows.parse_sizes(["sums=1-3"]), rows.parse_lengths("24"))
    settings = loop.Settings(1e9, lessons.smallest_part, compile=False, max_steps=3, keep_every=0.0)
    alone = library._replace(train={}, held_out={})
    state = small.resumed_at(tmp_path, TINY, settings, alone, 40, None, lessons)

    def train(resuming: Any, keep: Any = None) -> loop.Trained:
        return small.train_small(alone, TINY, settings, CPU, 40, lessons=lessons, keep=keep, resuming=resuming)

    class Killed(Exception):
        pass

    def kill(trained: loop.Trained) -> None:
        if trained.steps == 2:  # what the first step saved stays
            raise Killed

    with pytest.raises(Killed):
        train(state, kill)
    again, whole = train(state), train(None)
    assert again.steps == whole.steps == 3 and again.resumed == 1
    for name, value in whole.state.items():
        torch.testing.assert_close(again.state[name], value)


def test_configs_that_are_too_short_are_refused() -> None:
    with pytest.raises(UsageError, match="1024"):
        small.parse_config(
            json.dumps(vars(LLaDAConfig(mask_token_id=MASK, eos_token_id=EOS, max_sequence_length=512))), 1024
        )


def test_updates_of_matrices_are_orthogonal_and_learn_faster_than_nothing() -> None:
    from training.muon import MuonAndAdam, orthogonal

    drawn = torch.randn(3, 12, 30, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(drawn).float())
    assert values.min() > 0.6 and values.max() < 1.3
    assert torch.allclose(orthogonal(drawn.mT), orthogonal(drawn).mT)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    optimizer = MuonAndAdam(network, {"0.weight"}, 0.02, (0.9, 0.99), 0.0)
    x = torch.randn(64, 8)
    losses = []
    for _ in range(60):
        loss = (network(x) - x[:, :2] * 3).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
    assert all(parameter.grad is None for parameter in network.parameters())
    network(x).sum().backward()
    MuonAndAdam(network, {"0.weight"}, 0.02, (0.9, 0.99), 0.0, keeps_gradients=True).zero_grad()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_gradients_are_those_of_the_batch_alone() -> None:
    from training.recorded import Recorded

    network = torch.nn.Linear(4, 1)
    gradients = Recorded(network, lambda parts: sum(network(part[0]).square().mean() for part in parts), on=False)
    batch = [(torch.ones(2, 4),), (torch.zeros(3, 4),)]
    first = gradients(batch)
    kept = network.weight.grad.clone()
    assert torch.equal(gradients(batch), first) and torch.equal(network.weight.grad, kept)  # not added up


def test_levels_are_sought_between_those_that_are_too_easy_and_too_hard() -> None:
    new = -1.0
    assert evaluation.next_level(dict.fromkeys(range(6), new)) in (2, 3)
    assert evaluation.next_level({0: new, 1: new, 2: 1.0, 3: new, 4: new, 5: new}) in (3, 4)
    assert evaluation.next_level({0: new, 1: new, 2: 0.1, 3: new, 4: new, 5: new}) in (0, 1)
    assert evaluation.next_level({0: new, 1: 1.0, 2: 0.8, 3: 0.2, 4: new, 5: new}) is None
    assert evaluation.next_level({0: new, 1: 0.9, 2: 0.8, 3: 0.2}) == 0
