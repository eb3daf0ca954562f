"""What samples are judged by: distances equal their closed forms, intervals hold what they should, judges see."""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from tenuto.errors import CheckpointError, TenutoError, UsageError
from tenuto.models import open_model, shipped
from tenuto_lab.judging.cifar_classifier import CifarClassifier
from tenuto_lab.judging.classifier import Classifier
from tenuto_lab.judging.judges import (
    CHUNK,
    PictureJudge,
    TextJudge,
    answer_lengths,
    build_causal,
    load_text_judge,
    picture_judge,
    problems,
)
from tenuto_lab.judging.statistics import Distance, Statistics, frechet, mean_interval, paired_test
from training import llada_text

LLAMA = {
    "model_type": "llama",
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "tie_word_embeddings": True,
}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shipped_or_skip(name: str) -> Path:
    try:
        return shipped(name)
    except CheckpointError:
        pytest.skip(f"{name} is not here")


# Distances of sets


def test_frechet_of_diagonal_gaussians_is_its_closed_form() -> None:
    first, second = (normal(7, seed=seed).abs().double() + 0.1 for seed in (1, 2))
    mean = normal(7, seed=3).double()
    a, b = Statistics(mean, first.diag()), Statistics(torch.zeros(7).double(), second.diag())
    expected = mean.square().sum() + (first.sqrt() - second.sqrt()).square().sum()
    assert frechet(a, b) == pytest.approx(expected.item(), rel=1e-12)
    assert frechet(b, a) == pytest.approx(frechet(a, b), rel=1e-12)


def test_frechet_of_gaussians_that_do_not_commute_is_that_of_the_matrix_square_root() -> None:
    a, b = (Statistics.of(normal(50, 5, seed=seed) @ normal(5, 5, seed=seed + 1)) for seed in (1, 3))
    values = np.linalg.eigvals((a.covariance @ b.covariance).numpy())  # of no symmetric matrix, but real and positive
    trace = (a.covariance + b.covariance).trace().item() - 2 * np.sqrt(values.real).sum()
    assert frechet(a, b) == pytest.approx((a.mean - b.mean).square().sum().item() + trace, rel=1e-9)


def test_equal_sets_are_no_distance_apart_even_where_features_never_vary() -> None:
    features = normal(40, 6)
    features[:, 2:4] = 0
    statistics = Statistics.of(features)
    assert frechet(statistics, statistics) == pytest.approx(0, abs=1e-6)


def test_statistics_are_those_of_numpy() -> None:
    features = normal(30, 4)
    statistics = Statistics.of(features)
    np.testing.assert_allclose(statistics.covariance, np.cov(features.double().numpy(), rowvar=False), rtol=1e-12)
    np.testing.assert_allclose(statistics.mean, features.double().numpy().mean(0), rtol=1e-12)
    assert Statistics.of(normal(9, 1)).covariance.shape == (1, 1)


def test_statistics_survive_a_file_and_damage_is_named(tmp_path: Path) -> None:
    path, statistics = tmp_path / "statistics.safetensors", Statistics.of(normal(30, 4))
    statistics.save(path, {"provenance": "a test"})
    loaded = Statistics.load(path)
    assert loaded.mean.equal(statistics.mean) and loaded.covariance.equal(statistics.covariance)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TenutoError, match="does not hold a mean and a covariance"):
        Statistics.load(path)
    with pytest.raises(TenutoError, match="Cannot read"):
        Statistics.load(tmp_path / "nowhere.safetensors")


def test_the_interval_of_a_distance_holds_it_and_narrows_with_samples() -> None:
    reference = Statistics.of(normal(4000, 8, seed=1))
    few, many = (Distance.of(normal(count, 8, seed=2) + 0.2, reference).interval for count in (100, 2000))
    for value, low, high in (few, many):
        assert 0 <= low < value < high
    assert many[2] - many[1] < few[2] - few[1]
    assert many[1] < 8 * 0.2**2 < many[2]  # that of the distributions themselves
    assert many[0] == pytest.approx(frechet(Statistics.of(normal(2000, 8, seed=2) + 0.2), reference), rel=1e-10)


def test_the_paired_delta_of_identical_features_is_nothing_for_sure() -> None:
    features, reference = normal(100, 6), Statistics.of(normal(200, 6, seed=1))
    one, same = (Distance.of(each, reference) for each in (features, features.clone()))
    assert one.beyond(same) == (0, 0, 0)


def test_the_paired_delta_is_surer_than_the_distances_it_is_between() -> None:
    reference, full = Statistics.of(normal(2000, 6, seed=1)), normal(400, 6, seed=2)
    held = full + 0.3 + 0.01 * normal(400, 6, seed=3)
    of_held, of_full = Distance.of(held, reference), Distance.of(full, reference)
    delta, low, high = of_held.beyond(of_full)
    assert low < delta < high and low > 0
    alone = of_held.interval
    assert high - low < alone[2] - alone[1]
    assert delta == pytest.approx(alone[0] - frechet(Statistics.of(full), reference), rel=1e-9)
    with pytest.raises(ValueError, match="not of paired samples"):
        Distance.of(held[:-1], reference).beyond(of_full)


# Means and tests


def test_the_interval_of_a_mean_holds_it_and_has_the_width_of_the_normal_one() -> None:
    values = normal(400)
    mean, low, high = mean_interval(values)
    assert low < mean < high
    assert mean == pytest.approx(values.double().mean().item())
    assert high - low == pytest.approx(2 * 1.96 * values.std().item() / 20, rel=0.1)
    assert mean_interval([3.0, 3.0]) == (3, 3, 3)
    assert mean_interval(torch.tensor([True, False]))[0] == 0.5
    assert mean_interval([1.0, float("inf")] * 20)[0] == float("inf")  # the dB of equal pictures


def test_a_clear_shift_is_no_chance_and_noise_is() -> None:
    a, b = normal(60, seed=1), normal(60, seed=2)
    assert paired_test(a + 2, b) < 0.001
    assert paired_test(a, b) > 0.05
    assert paired_test(a, a) == 1
    assert paired_test(a, b) == paired_test(b, a) == paired_test(a, b, seed=0)


def test_the_sign_flip_test_counts_the_ways_the_signs_can_fall() -> None:
    # Five equal differences: of 32 ways two are as far from nothing.
    assert paired_test([1.0] * 5 + [0.0] * 3, [0.0] * 8) == pytest.approx(2 / 32, abs=0.01)


# The judge of pictures


@pytest.fixture(params=[Classifier, CifarClassifier], ids=["fashion", "cifar"])
def judge(request: pytest.FixtureRequest) -> PictureJudge:
    torch.manual_seed(0)
    return PictureJudge("random", request.param().eval())


def pictures(judge: PictureJudge, count: int, seed: int = 0) -> torch.Tensor:
    return normal(count, 1 if isinstance(judge.module, Classifier) else 3, 32, 32, seed=seed).clamp(-1, 1)


def test_equal_pictures_look_equal_and_noise_makes_them_differ(judge: PictureJudge) -> None:
    images = pictures(judge, 3)
    assert judge.perceptual(images, images.clone()).tolist() == [0, 0, 0]
    seen = [judge.perceptual(images + level * normal(*images.shape, seed=1), images) for level in (0.01, 0.1, 0.5)]
    assert (seen[0] > 0).all() and (seen[1] > seen[0]).all() and (seen[2] > seen[1]).all()


def test_pictures_are_judged_as_shown_and_each_for_itself(judge: PictureJudge) -> None:
    images = pictures(judge, 4)
    images[0, 0, 0, 0] = 1
    brighter = images.clone()
    brighter[0, 0, 0, 0] = 5
    assert judge.perceptual(brighter, images)[0] == 0
    torch.testing.assert_close(judge.features(images)[2:], judge.features(images[2:]))
    guesses = judge.module(images).argmax(1)
    assert judge.agrees(images, guesses).all() and not judge.agrees(images, (guesses + 1) % 10).any()


def test_the_distance_of_few_pictures_is_not_told(judge: PictureJudge) -> None:
    few, many = (pictures(judge, count) for count in (100, 200))
    assert judge.distance(many) is None  # from what?
    judge.statistics = Statistics.of(judge.features(pictures(judge, 300, seed=1)))
    assert judge.distance(few) is None  # fewer than features
    distance = judge.distance(many)
    assert distance is not None and distance.value == pytest.approx(
        frechet(Statistics.of(judge.features(many)), judge.statistics), rel=1e-6
    )


def test_more_pictures_than_a_chunk_are_all_judged() -> None:
    judge = PictureJudge("random", Classifier().eval())
    judge.module.convolutions = cast(Any, torch.nn.MaxPool2d(32))  # the order is what matters here
    images = torch.linspace(-1, 1, CHUNK + 7)[:, None, None, None].expand(-1, 1, 32, 32)
    torch.testing.assert_close(judge.features(images)[:, 0], images[:, 0, 0, 0])


@pytest.mark.parametrize(("name", "classifier"), [("tiny-dit", "fashion"), ("tiny-uvit", "cifar")])
def test_a_shipped_model_has_a_judge_that_knows_real_pictures(name: str, classifier: str) -> None:
    shipped_or_skip(name), shipped_or_skip(f"{classifier}-classifier")
    judge = picture_judge(cast(Any, open_model(name)), "cpu")
    assert judge is not None and judge.name == f"{classifier}-classifier features"
    assert judge.statistics is not None
    features = judge.features(pictures(judge, 8))
    assert features.shape[1] == len(judge.statistics.mean)
    assert frechet(judge.statistics, judge.statistics) == pytest.approx(0, abs=1e-4)
    assert frechet(Statistics.of(features), judge.statistics) > 1  # noise is far from pictures


def test_pictures_of_another_kind_have_no_judge() -> None:
    def judged(shape: Any, labels: Any = (), **config: Any) -> Any:
        return picture_judge(
            cast(Any, SimpleNamespace(config=SimpleNamespace(sample_shape=shape, **config), labels=labels, path=None)),
            "cpu",
        )

    shipped_or_skip("fashion-classifier")
    assert judged((1, 32, 32), classes=10) is not None
    assert judged((1, 32, 32), classes=4) is None
    assert judged((1, 32, 32), tuple("0123456789"), classes=10) is None
    assert judged((4, 32, 32)) is None
    assert picture_judge(cast(Any, SimpleNamespace(config=SimpleNamespace(), labels=())), "cpu") is None


# The judge of text


@pytest.fixture(scope="module")
def text_judge() -> TextJudge:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    network = build_causal(LLAMA)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return TextJudge(network)


def test_the_likelihood_of_a_text_is_the_product_of_its_tokens(text_judge: TextJudge) -> None:
    rows = torch.tensor([[2, 5, 7, 11, 4, 3], [2, 9, 9, 9, 9, 9]])
    expected = []
    for row in rows.tolist():
        total = 0.0
        for place in (3, 4, 5):  # each from what is before it alone
            logits = text_judge.network(input_ids=torch.tensor([row[:place]])).logits[0, -1]
            total -= logits.log_softmax(0)[row[place]].item()
        expected.append(total / 3)
    nll = text_judge.nll(rows, 3)
    assert nll.dtype == torch.float32
    assert nll.tolist() == pytest.approx(expected, rel=1e-5)


def test_what_follows_the_end_of_a_text_does_not_count_but_the_end_does(text_judge: TextJudge) -> None:
    ended, other = torch.tensor([[2, 1, 5, 7, 1, 8, 3, 4]]), torch.tensor([[2, 1, 5, 7, 1, 1, 1, 9]])
    assert text_judge.nll(ended, 2).tolist() == pytest.approx(text_judge.nll(other, 2).tolist(), rel=1e-6)
    assert text_judge.nll(ended, 2).tolist() == pytest.approx(text_judge.nll(ended[:, :5], 2).tolist(), rel=1e-6)
    assert text_judge.nll(ended[:, :5], 2).item() != pytest.approx(text_judge.nll(ended[:, :4], 2).item(), rel=1e-3)


@pytest.mark.parametrize(("length", "first"), [(6, 0), (6, 6), (13, 2)])
def test_rows_that_cannot_be_judged_are_refused(text_judge: TextJudge, length: int, first: int) -> None:
    with pytest.raises(UsageError, match="cannot be judged"):
        text_judge.nll(torch.ones(1, length, dtype=torch.long), first)


def test_a_stored_judge_judges_alike_and_a_damaged_one_is_refused(text_judge: TextJudge, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    state = {key: value.detach() for key, value in text_judge.network.state_dict().items() if key != "lm_head.weight"}
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    rows = torch.arange(2, 12)[None]
    assert load_text_judge(tmp_path).nll(rows, 4).equal(text_judge.nll(rows, 4))
    del state["model.norm.weight"]
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        load_text_judge(tmp_path)


def test_without_transformers_the_judge_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TenutoError, match=r"pip install '\.\[pipelines\]'"):
        build_causal(LLAMA)


# The problems


def test_every_shipped_problem_fits_and_is_made_of_the_models_tokens() -> None:
    directory = shipped_or_skip("small-llada")
    found, config = problems(directory), json.loads((directory / "config.json").read_text())
    lengths = answer_lengths(directory)
    assert set(found) == set(lengths)
    for task, posed in found.items():
        different = 46 if task == "code-1" else 64  # short programs repeat; an experiment asks each of them once
        assert len(posed) == 64 and len({tuple(problem["prompt"]) for problem in posed}) == different
        for problem in posed:
            room = lengths[task]
            assert problem["prompt"][0] == llada_text.BOS
            assert len(problem["prompt"]) + room <= config["max_sequence_length"]
            assert 1 <= len(problem["answer"]) <= room
            assert 2 < max(problem["prompt"] + problem["answer"]) < config["vocab_size"]
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    for problem in found["codes-16"]:
        text, codes = tokenizer.decode(problem["prompt"]), tokenizer.decode(problem["answer"])
        words = text.rsplit("the code of ", 1)[1].removesuffix("? Answer:").split(" and ")
        for word, code in zip(words, codes.split(), strict=True):
            assert f"The code of {word} is {code}." in text


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"problems": {}}, "lacks the field"),
        ({"problems": {"sums": []}, "provenance": {}}, "a list of some"),
        ({"problems": {"sums": [{"prompt": [2]}]}, "provenance": {}}, "lacks the field"),
        ({"problems": {"sums": [{"prompt": [2], "answer": [True]}]}, "provenance": {}}, "list of tokens"),
        ({"problems": {"sums": [{"prompt": [], "answer": [3]}]}, "provenance": {}}, "list of tokens"),
    ],
)
def test_malformed_problems_are_named(tmp_path: Path, content: Any, complaint: str) -> None:
    (tmp_path / "problems.json").write_text(json.dumps(content))
    with pytest.raises(TenutoError, match=complaint):
        problems(tmp_path)


def test_recoded_books_say_the_same_in_the_other_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def book(seed: int) -> str:
        chance = random.Random(seed)
        words = ["".join(chance.choices("abcdefghij", k=chance.randint(2, 7))) for _ in range(300)]
        return "\n".join(" ".join(chance.choices(words, k=12)).capitalize() + "." for _ in range(40)) + "\n"

    first, second = (llada_text.train_tokenizer([book(seed)], 560) for seed in (1, 2))
    corpus = llada_text.Corpus(np.zeros(0, np.uint16), np.zeros(0, np.uint16), first)
    train, held_out = (np.array(corpus.encode(book(seed)), dtype=np.uint16) for seed in (3, 4))
    corpus = corpus._replace(train=train, held_out=held_out)
    path = tmp_path / "tokenizer.json"
    first.save(str(path))
    assert llada_text.recoded(corpus, path) is corpus
    second.save(str(path))
    monkeypatch.setattr(llada_text, "PART", 100)  # many parts
    other = llada_text.recoded(corpus, path)
    assert other.train.tolist() == second.encode(book(3), add_special_tokens=False).ids
    assert other.decode(other.held_out.tolist()) == book(4)
    assert other.train.dtype == np.uint16 and other.train.tolist() != train.tolist()
