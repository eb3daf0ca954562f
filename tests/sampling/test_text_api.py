"""tenuto.text: one call makes the schedule and writes, steps can be listened to, and what runs them is kept."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

import tenuto
from tenuto.errors import ScheduleError, UsageError
from tenuto.text import LanguageModel, Texts
from tests.models.test_llada import TINY, make_network

PROMPTS = ["two and three", "five"]
TEMPLATE = "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}<assistant>"
WORDS = ["<mask>", "</s>", "<user>", "<assistant>", "two", "and", "three", "five"]


def write_language_model(directory, template=TEMPLATE):
    """A LLaDA with random weights whose twenty tokens are words, in a directory."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = [*WORDS, *(f"w{i}" for i in range(len(WORDS), TINY.vocab_size))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w8"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.WhitespaceSplit(), decoders.WordPiece("##", False)
    tokenizer.add_special_tokens(WORDS[:4])
    tokenizer.save(str(directory / "tokenizer.json"))
    if template:
        (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (directory / "config.json").write_text(json.dumps({"model_type": "llada", **vars(TINY)}))
    save_file(make_network(seed=3).state_dict(), directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_language_model(tmp_path_factory.mktemp("llada"))


@pytest.fixture
def model(directory) -> LanguageModel:
    return tenuto.text.load(directory)


OPTIONS = {"length": 8, "block_length": 4}


def test_a_schedule_may_be_given_by_its_file_and_an_unknown_option_is_named(tmp_path) -> None:
    model = tenuto.text.load("small-llada")
    made, asked = model.schedule(8, budget=0.5), {"length": 8, "block_length": 8}
    made.save(tmp_path / "s.json")
    same = [model.generate(["add: 1 + 2 ="], schedule=one, **asked)[0] for one in (made, tmp_path / "s.json")]
    assert same[0] == same[1]
    with pytest.raises(UsageError, match="There is no option 'paralel'; the options of sampling are .*parallel"):
        model.generate(["add: 1 + 2 ="], paralel=0.9)
    with pytest.raises(UsageError, match="length must be at least 1, not -1"):
        model.generate(["add: 1 + 2 ="], length=-1)


def test_the_module_is_there_without_being_imported():
    code = (
        "import sys, tenuto; assert 'torch' not in sys.modules; assert tenuto.text.load; assert 'text' in dir(tenuto)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_texts_are_those_of_the_sampler(model):
    plain = tenuto.generate_text(model.model, PROMPTS, steps=8, **OPTIONS)
    assert model.generate(PROMPTS, **OPTIONS) == plain
    assert model.generate(PROMPTS, budget=1.0, **OPTIONS) == plain
    held = tenuto.schedule(tenuto.score(model.model), 8, budget=0.5, blocks=2)
    scheduled = tenuto.generate_text(model.model, PROMPTS, schedule=held, steps=8, **OPTIONS)
    assert model.generate(PROMPTS, budget=0.5, **OPTIONS) == scheduled
    assert model.generate(PROMPTS, schedule=held, length=8) == scheduled  # steps and blocks are the schedule's
    wrapped = tenuto.generate_text(model.model, PROMPTS, steps=4, chat=True, **OPTIONS)
    assert model.generate(PROMPTS, steps=4, chat=True, **OPTIONS) == wrapped
    said = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    assert model.generate(said, steps=4, **OPTIONS) == wrapped


def test_what_it_took_is_told(model):
    texts = model.generate(PROMPTS, budget=0.5, stop_at_eos=False, **OPTIONS)
    assert 0 < texts.tokens <= 16 and texts.seconds > 0 and texts.steps == 8 and texts.work == 0.5
    assert texts.tokens_per_second == pytest.approx(texts.tokens / texts.seconds)
    assert "8 evaluations, 4 of everything and 4 of a block" in texts.summary()
    assert "everything computed" in model.generate(PROMPTS, **OPTIONS).summary()
    assert model.generate(PROMPTS, speedup=4, **OPTIONS).work == 0.25


@pytest.mark.parametrize("options", [{}, {"budget": 0.5}, {"temperature": 0.7, "batch": 1}])
def test_each_step_tells_what_it_wrote(model, options):
    writing = model.stream(PROMPTS, steps=4, stop_at_eos=False, **OPTIONS, **options)
    canvas = torch.zeros(2, 8, dtype=torch.long)
    seen = []
    for written in writing:
        rows = slice(written.first, written.first + len(written.tokens))
        assert (canvas[rows].gather(1, written.positions) == 0).all()  # each position once
        canvas[rows] = canvas[rows].scatter(1, written.positions, written.tokens)
        seen.append(int(written.positions.max()))
    assert (canvas != TINY.mask_token_id).all()
    assert all(place < 4 for place in seen[:2])  # the first block first
    assert [model.model.tokenizer.decode(row) for row in canvas.tolist()] == writing.texts
    assert list(writing) == [] and writing.texts is writing.texts
    assert model.generate(PROMPTS, steps=4, stop_at_eos=False, **OPTIONS, **options) == writing.texts


def test_what_runs_a_schedule_is_kept_and_schedules_are_made_once(model):
    model.generate(PROMPTS, budget=0.5, **OPTIONS)
    (first,) = model._executors
    model.generate(PROMPTS, **OPTIONS)
    model.generate(PROMPTS[:1], budget=0.5, **OPTIONS)
    *_, last = executors = list(model._executors)
    assert last is first and len(executors) == 2
    assert model.schedule(8, blocks=2, budget=0.5) is first.schedule
    for steps in (2, 4, 6):
        model.generate(PROMPTS, budget=0.5, steps=steps, **OPTIONS)
    assert len(list(model._executors)) == 4 and first in model._executors


def result(stream):
    while True:
        try:
            next(stream)
        except StopIteration as end:
            return end.value


def test_padding_prompts_further_changes_nothing(model):
    from tenuto.runtime.executor import Executor
    from tenuto.sampling.masked import MaskedSampling, generate_tokens, write_tokens

    sampling, prompts = MaskedSampling(steps=4, **OPTIONS), [[4, 5, 6], [7]]
    executor = Executor(model.model.network)
    stream = write_tokens(executor, prompts, sampling=sampling, pad_to=16)
    assert torch.equal(result(stream), generate_tokens(executor, prompts, sampling=sampling))


def test_what_makes_no_sense_is_refused(model):
    with pytest.raises(UsageError, match="one of budget, speedup, schedule and every"):
        model.generate(PROMPTS, budget=0.5, speedup=2, **OPTIONS)
    with pytest.raises(UsageError, match="Prompts are a list"):
        model.generate("two", **OPTIONS)
    with pytest.raises(UsageError, match="a list of texts, not None"):
        model.generate(None, **OPTIONS)
    for prompt in (3, None, ["two"], [{"role": "user"}]):
        with pytest.raises(UsageError, match="A prompt is a text, or a list of messages"):
            model.generate([prompt], **OPTIONS)
    with pytest.raises(UsageError, match="sliding is True or False, not 'yes'"):
        model.generate(PROMPTS, parallel=0.9, sliding="yes", **OPTIONS)
    for option in ({"budget": 0.5}, {"speedup": 2}):
        with pytest.raises(UsageError, match="with parallel decoding, give `every`"):
            model.generate(PROMPTS, parallel=0.9, **option, **OPTIONS)
    with pytest.raises(UsageError, match="draws"):
        tenuto.text.load("tiny-dit")
    with pytest.raises(ScheduleError):
        model.generate(PROMPTS, schedule=tenuto.schedule("tiny-dit", steps=8), length=8)
    with pytest.raises(UsageError, match="heat"):
        model.generate(PROMPTS, heat=1.0)


def test_an_answer_that_ends_before_a_block_is_computed_alone_reused_nothing():
    texts = tenuto.text.load("small-llada").generate(
        ["sort: 42 48 7 25 53 40 ->"], length=32, block_length=16, parallel=0.9
    )
    assert texts[0].strip() == "7 25 40 42 48 53" and texts.tokens > 3 * texts.steps
    assert texts.summary().endswith("everything computed")


def test_a_shipped_model_in_8_bits_sorts_what_a_cache_gets_wrong():
    """Numbers of a prompt look different once others of them are written, so the cache fails its check."""
    model = tenuto.text.load("reasoning-llada")
    parameters = list(model.model.network.parameters())
    assert {one.dtype for one in parameters} == {torch.float32} and sum(one.numel() for one in parameters) > 30e6
    prompt = "sort: 93 51 52 46 70 32 90 76 92 33 91 61 89 4 70 60 60 13 0 65 ->"
    options = {"length": 64, "block_length": 16}
    by_default = model.generate([prompt], parallel=0.97, **options)
    assert by_default[0] == " 0 4 13 32 33 46 51 52 60 60 61 65 70 70 76 89 90 91 92 93"
    assert by_default.summary().endswith("everything computed") and 8 < by_default.steps < 20
    assert model.generate([prompt], parallel=0.97, every="early", **options) != by_default


def test_one_token_is_not_called_tokens():
    assert Texts(["a"], 1, 0.5, 1, None).summary().startswith("1 token in 0.50 s (2.0 tokens/s), 1 evaluation, ")


def test_the_shipped_model_answers():
    texts = tenuto.text.load("small-llada").generate(["add: 12 + 7 ="], budget=0.5, length=8)
    assert "19" in texts[0]


@pytest.mark.gpu
def test_prompts_of_other_lengths_replay_the_same_graphs(directory):
    model = tenuto.text.load(directory, device="cuda")
    first = model.generate(["two"], budget=0.5, **OPTIONS)
    (executor,) = model._executors
    recorded = executor.report().graphs
    assert recorded > 0
    model.generate(["two and three"], budget=0.5, **OPTIONS)
    assert executor.report().graphs == recorded
    assert model.generate(["two"], budget=0.5, **OPTIONS) == first


@pytest.mark.parametrize(
    "options", [{}, {"every": 3}, {"every": "early"}, {"every": 1}, {"sliding": True}, {"temperature": 0.7, "batch": 1}]
)
def test_parallel_decoding_tells_what_each_evaluation_wrote(model, options):
    writing = model.stream(PROMPTS, parallel=0.15, stop_at_eos=False, **OPTIONS, **options)
    answers = [{}, {}]
    steps = 0
    for written in writing:
        steps += 1
        for row in range(len(written.tokens)):
            new = written.of(row)
            assert not set(new) & set(answers[written.first + row])  # each position once
            answers[written.first + row] |= new
    decode = model.model.tokenizer.decode
    assert [decode([one[place] for place in range(8)]) for one in answers] == writing.texts
    assert writing.texts.steps <= steps < 16
    assert model.generate(PROMPTS, parallel=0.15, stop_at_eos=False, **OPTIONS, **options) == writing.texts


def test_with_parallel_decoding_the_summary_says_what_was_reused(model):
    texts = model.generate(PROMPTS, parallel=1.0, every=4, stop_at_eos=False, **OPTIONS)
    assert "8 evaluations, 2 of everything and 6 of a block, from the KV cache" in texts.summary()
    assert model.generate(PROMPTS, parallel=1.0, stop_at_eos=False, **OPTIONS).steps == 8
    by_default = model.generate(PROMPTS, parallel=1.0, stop_at_eos=False, **OPTIONS)
    assert by_default == model.generate(PROMPTS, parallel=1.0, stop_at_eos=False, every="checked", **OPTIONS)
    assert by_default.steps == 8 and by_default.full_steps >= 5
    early = model.generate(PROMPTS, parallel=1.0, stop_at_eos=False, every="early", **OPTIONS)
    assert "8 evaluations, 5 of everything and 3 of a block" in early.summary()
    full = model.generate(PROMPTS, parallel=1.0, stop_at_eos=False, every=1, **OPTIONS)
    assert "everything computed" in full.summary()
    with pytest.raises(UsageError, match="goes with parallel decoding"):
        model.generate(PROMPTS, every=4, **OPTIONS)
    with pytest.raises(UsageError, match="leave the steps out"):
        model.generate(PROMPTS, parallel=0.9, steps=4, **OPTIONS)
