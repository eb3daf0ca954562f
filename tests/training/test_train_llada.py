"""The training of the small LLaDA, on made-up books and a network small enough for a CPU.

What the commands write must be whole and readable; whether the real model is any good is its model card's matter.
"""

import json
import random
import re
from itertools import islice
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from tenuto.errors import UsageError
from tenuto.models import load
from tenuto.models.llada import LLaDA, LLaDAConfig
from tenuto.sampling.masked import generate_tokens
from training import evaluate_llada, llada_problems, llada_text, loop, train_llada
from training.llada_text import BOS, EOS, LONG, MASK, SHORT

CPU = torch.device("cpu")
VOCABULARY = 1100
TINY = LLaDAConfig(
    d_model=16,
    n_layers=2,
    n_heads=2,
    n_kv_heads=2,
    mlp_hidden_size=24,
    vocab_size=VOCABULARY,
    embedding_size=VOCABULARY,
    max_sequence_length=LONG,
    mask_token_id=MASK,
    eos_token_id=EOS,
)
POOLS = {"needle": 20, "drill": 20, "arithmetic": 20, "brackets": 20}


def invented_book(seed: int) -> str:
    chance = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "in", "or", "ul")]

    def sentence() -> str:
        words = ["".join(chance.choices(syllables, k=chance.randint(1, 3))) for _ in range(chance.randint(4, 12))]
        return " ".join(words).capitalize() + chance.choice(".!?")

    paragraphs = [" ".join(sentence() for _ in range(chance.randint(3, 8))) for _ in range(150)]
    return "# Title: A book\n\n## Chapter 1\n\n" + "\n\n".join(paragraphs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llada")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    (folder / "books").mkdir()
    for i in range(2):
        (folder / "books" / f"book-{i}.md").write_text(invented_book(i), encoding="utf-8")
    llada_text.build(folder / "books", folder / "text.npz", VOCABULARY)
    return folder / "text.npz"


@pytest.fixture(scope="module")
def corpus(data: Path) -> llada_text.Corpus:
    return llada_text.load(data)


@pytest.fixture(scope="module")
def checkpoint(folder: Path, corpus: llada_text.Corpus) -> Path:
    settings = loop.Settings(seconds=60, batch=8, compile=False, max_steps=3)
    trained = train_llada.train_llada(corpus, TINY, settings, CPU, POOLS)
    train_llada.save(folder / "model", trained, TINY, settings, corpus)
    return folder / "model"


def test_books_become_plain_paragraphs() -> None:
    book = "# Title: X\n\n-------\n\nIt was “so”—he\nsaid _loudly_…\n\n* * *\n\nÉmile’s end."
    assert llada_text.clean(book) == 'It was "so"--he said loudly...\nEmile\'s end.'


def test_a_folder_without_books_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no .txt or .md files"):
        llada_text.build(tmp_path, tmp_path / "x.npz")


def test_the_tokenizer_keeps_digits_and_brackets_apart(corpus: llada_text.Corpus) -> None:
    tokenizer = corpus.tokenizer
    assert [tokenizer.token_to_id(token) for token in llada_text.SPECIAL] == [MASK, EOS, BOS]
    assert tokenizer.encode("1234 ([{", add_special_tokens=False).tokens == ["1", "2", "3", "4", "Ġ", "(", "[", "{"]
    assert tokenizer.encode("so").ids[0] == BOS
    assert tokenizer.decode(tokenizer.encode("Ünïcode, 12 (too).").ids) == "Ünïcode, 12 (too)."


def test_sentences_start_behind_full_stops_and_newlines(corpus: llada_text.Corpus) -> None:
    starts = llada_text.sentence_starts(corpus.train, corpus.tokenizer)
    assert len(starts) > 500
    for start in starts[:50].tolist():
        before, after = (
            corpus.decode(part.tolist()) for part in (corpus.train[:start], corpus.train[start : start + 5])
        )
        assert before[-1] in ".!?\n" and after.lstrip()[0].isupper()


@pytest.mark.parametrize("held_out", [False, True])
def test_tasks_are_spelled_as_promised(corpus: llada_text.Corpus, held_out: bool) -> None:
    for make in evaluate_llada.TASKS.values():
        for prompt, answer in islice(make(corpus, 0, held_out), 50):
            text = corpus.decode(prompt + answer)
            assert corpus.tokenizer.encode(text).ids == prompt + answer, text  # as a user would type it
    question = next(llada_text.arithmetic(corpus, 0, held_out))
    words = corpus.decode(question.prompt).replace(".", " ").replace("?", " ").split()
    a, b = (int(word) for word in words if word.isdigit())
    assert int(corpus.decode(question.answer)) in (a + b, a - b)
    prompt, answer = next(llada_text.brackets(corpus, 0, held_out))
    opening = corpus.decode(prompt).split()[1]
    assert corpus.decode(answer).strip() == opening[::-1].translate(str.maketrans("([{<", ")]}>"))
    prompt, answer = next(llada_text.needle(corpus, 0, held_out))
    text = corpus.decode(prompt)
    word = text.rsplit("the code of ", 1)[1].split("?")[0]
    assert f"The code of {word} is{corpus.decode(answer)}." in text


def test_tasks_to_train_on_and_held_out_ones_have_nothing_in_common(corpus: llada_text.Corpus) -> None:
    def facts(held_out: bool) -> set[tuple[str, ...]]:
        texts = (corpus.decode(p.prompt) for p in islice(llada_text.arithmetic(corpus, 1, held_out), 2000))
        # A sum and a difference of the same two numbers are two facts.
        return {(*"".join(c if c.isdigit() else " " for c in t).split(), str("more" in t)) for t in texts}

    assert not facts(False) & facts(True)


def test_rows_are_padded_with_end_of_text(corpus: llada_text.Corpus) -> None:
    made = llada_text.rows(llada_text.brackets(corpus, 0, False), 5, SHORT)
    for row, start, end in zip(*made, strict=True):
        assert row[0] == BOS and (row[end - 1 :] == EOS).all() and EOS not in row[: end - 1].tolist()
        assert 0 < start < end - 1


def test_batches_mask_what_they_should(corpus: llada_text.Corpus) -> None:
    long, short = next(train_llada.batches(corpus, 160, 0, CPU, POOLS))
    assert long.noisy.shape == (112, LONG) and short.noisy.shape == (240, SHORT)
    for batch in (long, short):
        hidden = batch.noisy != batch.clean
        assert (batch.noisy[hidden] == MASK).all() and (batch.clean[:, 0] == BOS).all() and not hidden[:, 0].any()
        assert torch.equal(batch.weight > 0, hidden) and batch.real[hidden].all()
        lengths = batch.real.sum(1)
        assert 0.3 < (lengths == batch.real.shape[1]).float().mean() < 0.7 and lengths.min() >= 10
    count = train_llada.counts(train_llada.LONG_PARTS, 112)["text"]
    text = long.weight[:count]  # text comes first: each token counts once on average
    assert text.sum() * len(long.noisy) / count == pytest.approx(1, abs=0.3)


def test_drills_hide_all_answers_and_nothing_else(corpus: llada_text.Corpus) -> None:
    tokens, answers = llada_text.drills(corpus, 0, 8)
    for row, there in zip(tokens, answers, strict=True):
        text = corpus.decode(row.tolist())
        told = dict(re.findall(r"code of (\w+) is (\d{4})", text))
        assert re.findall(r"code of (\w+)\? Answer: (\d{4})", text) and 2 <= len(told) <= llada_text.MOST_CODES
        assert all(told[word] == code for word, code in re.findall(r"code of (\w+)\? Answer: (\d{4})", text))
        assert not re.search(r"Answer: \d", corpus.decode(row[~there].tolist()))
    batch = train_llada.unanswered(torch.from_numpy(tokens).long(), torch.from_numpy(answers))
    assert torch.equal(batch.noisy == MASK, torch.from_numpy(answers)) and float(batch.weight.sum()) == pytest.approx(1)


def test_problems_to_measure_with_are_held_out_and_leave_room(corpus: llada_text.Corpus) -> None:
    """The code that a needle asks for stands in its prompt, and the books say what follows a beginning."""
    found = llada_problems.posed(corpus, 4, seed=1)
    assert {task: len(posed) for task, posed in found.items()} == {"needle": 4, "arithmetic": 4, "text": 4}
    for task, posed in found.items():
        for problem in posed:
            room = evaluate_llada.TEXT_LENGTH if task == "text" else evaluate_llada.ANSWER_LENGTH
            assert len(problem.prompt) + room <= LONG and 1 <= len(problem.answer) <= room
    for problem in found["needle"]:
        text, code = corpus.decode(problem.prompt), corpus.decode(problem.answer)
        word = text.rsplit("the code of ", 1)[1].removesuffix("? Answer:")
        assert f"The code of {word} is{code}." in text


def test_training_goes_on_from_a_checkpoint(corpus: llada_text.Corpus, tmp_path: Path) -> None:
    settings = loop.Settings(seconds=60, batch=8, compile=False, max_steps=1)
    first = train_llada.train_llada(corpus, TINY, settings, CPU, POOLS)
    train_llada.save(tmp_path / "first", first, TINY, settings, corpus)
    still = loop.Settings(seconds=60, batch=8, compile=False, max_steps=1, lr=0.0, ema=0.0)
    second = train_llada.train_llada(corpus, TINY, still, CPU, POOLS, start=tmp_path / "first")
    for name, value in first.state.items():
        assert torch.equal(second.state[name].bfloat16(), value.bfloat16()), name
    train_llada.save(tmp_path / "second", second, TINY, still, corpus, start=tmp_path / "first")
    record = json.loads((tmp_path / "second" / "loss.json").read_text())
    assert record["before"]["steps"] == 1


def test_answers_alone_are_masked_half_of_the_time() -> None:
    tokens = torch.full((400, 20), 9)
    start, end = torch.full((400,), 12), torch.full((400,), 16)
    noisy, _, real, weight = train_llada.masked(tokens, start, end, torch.Generator().manual_seed(0))
    in_prompt = (noisy[:, :12] == MASK).any(1).float().mean()
    assert 0.35 < in_prompt < 0.5  # half, less those whose share of masks is small
    assert real[:, :16].all() and not real.all()
    answers_only = (noisy[:, :12] != MASK).all(1)
    # An answer of four tokens counts four times a quarter, in expectation.
    assert weight[answers_only][:, 12:16].sum() * 400 / answers_only.sum() == pytest.approx(1, abs=0.4)


def test_problems_that_never_fit_are_refused(corpus: llada_text.Corpus) -> None:
    with pytest.raises(UsageError, match="None of 100 problems fits into 8 tokens"):
        llada_text.rows(llada_text.needle(corpus, 0, False), 2, 8)


def test_shares_of_a_batch_add_up() -> None:
    shares = train_llada.counts(train_llada.LONG_PARTS, 33)
    assert sum(shares.values()) == 33 and shares["needle"] == 9


def test_checkpoint_is_whole(checkpoint: Path, corpus: llada_text.Corpus) -> None:
    assert load(str(checkpoint)).config == TINY
    record = json.loads((checkpoint / "loss.json").read_text())
    assert record["steps"] == 3 and record["loss"][-1][0] == 3 and record["final_loss"] > 0
    assert (checkpoint / "loss.png").stat().st_size > 0
    assert not list(checkpoint.glob(".*"))
    stored = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    assert stored.get_vocab() == corpus.tokenizer.get_vocab()


def test_training_learns_something(corpus: llada_text.Corpus) -> None:
    settings = loop.Settings(seconds=60, batch=4, lr=1e-2, ema=0.9, compile=False, max_steps=40)
    network = LLaDA(TINY)
    network.initialize_weights()
    unseen = next(train_llada.batches(corpus, 40, 1, CPU, POOLS))[0]

    def loss() -> float:
        return train_llada.bound(network(unseen.noisy, attention_mask=unseen.real), unseen).item()

    before = loss()
    network.load_state_dict(train_llada.train_llada(corpus, TINY, settings, CPU, POOLS).state)
    assert loss() < 0.8 * before


def test_a_model_of_another_vocabulary_is_refused(corpus: llada_text.Corpus) -> None:
    settings = loop.Settings(seconds=60, batch=4, compile=False, max_steps=1)
    with pytest.raises(UsageError, match=f"{VOCABULARY} tokens"):
        train_llada.train_llada(corpus, train_llada.SHIPPED, settings, CPU, POOLS)


@pytest.mark.parametrize("given", ['{"mask_token_id": 5}', '{"nonsense": 1}', '{"d_model"', "absent.json"])
def test_configs_that_make_no_sense_are_refused(given: str) -> None:
    with pytest.raises(Exception, match=r"\.$"):
        train_llada.parse_config(given)


def test_the_shipped_model_is_small() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in LLaDA(train_llada.SHIPPED).parameters()) < 15_000_000


def test_evaluation_runs(checkpoint: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate_llada, "TEXT_LENGTH", 32)
    monkeypatch.setattr(evaluate_llada, "CONTINUATIONS", 2)
    result = evaluate_llada.evaluate(checkpoint, data, 3, CPU, 0, 2, tmp_path)
    assert set(result["accuracy"]) == {"needle", "arithmetic", "brackets"} and result["text_loss"] > 0
    assert json.loads((tmp_path / "evaluation.json").read_text()) == result
    assert "The code of" in (tmp_path / "samples.txt").read_text(encoding="utf-8")
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "Right: needle" in card and "Final loss" in card


def test_the_sampler_here_and_the_package_s_write_the_same(checkpoint: Path, corpus: llada_text.Corpus) -> None:
    network = load(str(checkpoint)).network
    assert isinstance(network, LLaDA)
    for parameter in network.parameters():
        parameter.requires_grad_(False).mul_(3)  # three steps leave every token about as likely as any other
    prompts = [problem.prompt for problem in islice(llada_text.arithmetic(corpus, 5, True), 3)]
    expected = generate_tokens(network, prompts, steps=8, length=8, block_length=4, stop_at_eos=False)
    assert evaluate_llada.write(network, prompts, 8, 4) == expected.tolist()
