"""Sets of pictures against a reference: the figures are right, and their conditions stand beside them."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tenuto.cli import main
from tenuto.errors import CheckpointError, TenutoError, UsageError
from tenuto_lab.full_size.clip import clip_scores
from tenuto_lab.full_size.fidelity import evaluate_pictures, read_reference, read_set
from tenuto_lab.full_size.inception import load_inception
from tenuto_lab.full_size.metrics import inception_score, mauve, precision_recall
from tenuto_lab.judging.judges import judge_of
from tenuto_lab.judging.statistics import Statistics, frechet


def pixels(count: int, *shape: int, seed: int = 0, low: int = 0, high: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, size=(count, *shape), dtype=np.uint8)


def saved(path: Path, images: np.ndarray, **more: np.ndarray) -> Path:
    np.savez(path, **cast(Any, {"arr_0": images, **more}))
    return path


def test_the_inception_score_tells_sure_and_varied_from_alike() -> None:
    sure = 100.0 * torch.eye(5).repeat(20, 1)  # each certain, all classes equally often
    assert inception_score(sure, splits=1)[0] == pytest.approx(5)
    assert inception_score(sure[:1].expand(100, -1)) == pytest.approx((1, 0))
    with pytest.raises(UsageError, match="cannot be split"):
        inception_score(sure[:5])


def test_precision_and_recall_see_what_is_missing_and_what_is_foreign() -> None:
    real = torch.cat([torch.randn(60, 2), torch.randn(60, 2) + 100])
    half = torch.randn(60, 2) * 0.3  # of the first cluster only
    foreign = torch.cat([half, torch.randn(60, 2) - 1000])
    precision, recall = precision_recall(half, real)
    assert precision > 0.9 and recall < 0.5
    assert precision_recall(foreign, real)[0] == pytest.approx(precision / 2)
    assert precision_recall(real, real) == (1.0, 1.0)


def test_a_ball_reaches_to_the_third_neighbour() -> None:
    line = torch.tensor([[0.0], [1.0], [2.0], [3.0], [10.0]])  # radii 3, 2, 2, 3, 9
    assert precision_recall(torch.tensor([[-2.9], [-3.1], [18.9], [19.1], [0.0]]), line)[0] == pytest.approx(3 / 5)


def test_mauve_is_one_for_one_distribution_and_small_for_others() -> None:
    pytest.importorskip("sklearn")
    features = [torch.randn(200, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    same, other = mauve(features[0], features[1], clusters=8), mauve(features[0], features[1] + 3, clusters=8)
    assert mauve(features[0], features[0]) == pytest.approx(1, abs=1e-3)
    assert same > 0.9 > 0.3 > other > 0


def test_own_features_against_pictures(tmp_path: Path) -> None:
    images, reference = pixels(24, 32, 32, 1), pixels(30, 32, 32, 1, seed=1, low=90)
    report = evaluate_pictures(
        saved(tmp_path / "a.npz", images), saved(tmp_path / "b.npz", reference), features="own", batch=7
    )
    judge = judge_of((1, 32, 32), "cpu")
    assert judge is not None
    one, other = (judge.features(torch.from_numpy(x).permute(0, 3, 1, 2) / 127.5 - 1) for x in (images, reference))
    figures = report["figures"]
    assert figures["fid"][0] == pytest.approx(frechet(Statistics.of(one), Statistics.of(other)), rel=1e-6)
    assert (figures["precision"], figures["recall"]) == precision_recall(one, other)
    assert figures["inception_score"] == pytest.approx(inception_score(judge.module.head(one)))
    assert figures["sfid"] is None
    assert report["reference"]["count"] == 30 and "fashion-classifier" in report["features"]


def test_own_features_come_with_a_reference_of_their_own(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", pixels(5, 32, 32, 1))
    report = evaluate_pictures(path, None, features="own")
    assert "held-out" in report["reference"]["name"]
    figures = report["figures"]
    assert figures["fid"][0] > 0 and figures["precision"] is None and figures["inception_score"] is None
    with pytest.raises(UsageError, match="No classifier is shipped for pictures of 16×16"):
        evaluate_pictures(saved(tmp_path / "b.npz", pixels(5, 16, 16, 1)), None, features="own")


def test_statistics_serve_as_a_reference(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", pixels(9, 32, 32, 1))
    features = torch.randn(200, 128, dtype=torch.float64)
    statistics = Statistics.of(features)
    statistics.save(tmp_path / "s.safetensors")
    np.savez(tmp_path / "s.npz", mu=statistics.mean.numpy(), sigma=statistics.covariance.numpy())
    reports = [evaluate_pictures(path, tmp_path / name, features="own") for name in ("s.safetensors", "s.npz")]
    assert reports[0]["figures"]["fid"] == pytest.approx(reports[1]["figures"]["fid"])
    np.savez(tmp_path / "other.npz", mu=np.zeros(7), sigma=np.eye(7))
    with pytest.raises(UsageError, match="of another network"):
        evaluate_pictures(path, tmp_path / "other.npz", features="own")


def test_a_directory_of_files_is_a_set(tmp_path: Path) -> None:
    images = pixels(3, 8, 8, 3)
    for i, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    assert np.array_equal(read_set(tmp_path).pixels, images)
    Image.fromarray(pixels(1, 4, 4, 3)[0]).save(tmp_path / "9.png")
    with pytest.raises(TenutoError, match="9.png is"):
        read_set(tmp_path)


@pytest.mark.parametrize("content", ["floats", "text", "nothing"])
def test_what_is_no_set_of_pictures_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.npz"
    if content == "floats":
        np.savez(path, arr_0=np.zeros((2, 8, 8, 3)))
    elif content == "text":
        path.write_text("pictures")
    with pytest.raises(TenutoError, match="x.npz"):
        read_set(path)


class StandIn(nn.Module):
    """As much of torch-fidelity's Inception as is used: two features, and the convolution that sFID looks at."""

    def __init__(self, name: Any, features_list: Any, feature_extractor_weights_path: Any = None) -> None:
        super().__init__()
        assert features_list == ["2048", "logits_unbiased"]
        self.Mixed_6d = nn.ModuleDict({"branch1x1": nn.Conv2d(3, 9, 1)})
        self.Mixed_6d.branch1x1 = self.Mixed_6d["branch1x1"]
        self.load_state_dict(torch.load(feature_extractor_weights_path, weights_only=True))

    def forward(self, x: Any) -> Any:
        assert x.dtype == torch.uint8 and x.shape[1] == 3
        seen = self.Mixed_6d["branch1x1"](x.float() / 255)
        return seen.mean(dim=(2, 3)), seen.amax(dim=(2, 3))


@pytest.fixture
def fidelity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Weights of a stand-in for torch-fidelity."""
    module = ModuleType("torch_fidelity")
    vars(module)["FeatureExtractorInceptionV3"] = StandIn
    monkeypatch.setitem(sys.modules, "torch_fidelity", module)
    torch.manual_seed(0)
    torch.save(
        nn.ModuleDict({"Mixed_6d": nn.ModuleDict({"branch1x1": nn.Conv2d(3, 9, 1)})}).state_dict(), tmp_path / "w"
    )
    return tmp_path / "w"


def test_inception_features_of_torch_fidelity(fidelity: Any, tmp_path: Path) -> None:
    images, reference = pixels(20, 8, 8, 3), pixels(20, 8, 8, 3, seed=1)
    paths = saved(tmp_path / "a.npz", images), saved(tmp_path / "b.npz", reference)
    report = evaluate_pictures(*paths, inception=fidelity, batch=6)
    network = load_inception(fidelity, "cpu")
    with torch.no_grad():
        (one, _, where), (other, _, there) = (  # type: ignore[misc]
            network(torch.from_numpy(x).permute(0, 3, 1, 2)) for x in (images, reference)
        )
    assert where.shape == (20, 7 * 8 * 8)
    figures = report["figures"]
    assert figures["fid"][0] == pytest.approx(frechet(Statistics.of(one), Statistics.of(other)), rel=1e-4)
    assert figures["sfid"] == pytest.approx(frechet(Statistics.of(where), Statistics.of(there)), rel=1e-4)


def test_the_real_inception_is_loaded_where_torch_fidelity_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    extractor = pytest.importorskip("torch_fidelity").FeatureExtractorInceptionV3
    random = dict[str, Any]()  # random weights, caught where the extractor would load its own
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", lambda *_, **__: {})
        patch.setattr(nn.Module, "load_state_dict", lambda module, *_: random.update(module.state_dict()))
        extractor("inception-v3-compat", ["2048"], feature_extractor_weights_path="none")
    torch.save(random, tmp_path / "inception.pth")
    network: Any = load_inception(tmp_path / "inception.pth", "cpu")
    features, logits, where = network(torch.zeros(2, 3, 32, 32).byte())
    assert features.shape == (2, 2048) and logits.shape == (2, 1008) and where.shape == (2, 2023)


def test_a_published_reference_batch_has_statistics_of_more_pictures_than_come_with_it(
    fidelity: Any, tmp_path: Path
) -> None:
    mean, covariance = np.zeros(9), np.eye(9)
    more = {"mu": mean, "sigma": covariance, "mu_s": np.zeros(448), "sigma_s": np.eye(448)}
    path = saved(tmp_path / "b.npz", pixels(20, 8, 8, 3), **more)
    assert read_reference(path).count is None
    figures = evaluate_pictures(path, path, inception=fidelity)["figures"]
    assert figures["precision"] == figures["recall"] == 1  # by its pictures
    assert figures["fid"][0] > 5 and figures["sfid"] > 300  # by its statistics


def test_without_torch_fidelity_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(TenutoError, match=r"pip install '\.\[eval\]'.*--features own"):
        evaluate_pictures(saved(tmp_path / "a.npz", pixels(5, 8, 8, 3)), tmp_path / "a.npz")


def test_inception_weights_are_tensors_only(fidelity: Any, tmp_path: Path) -> None:
    torch.save({"a": Path("x")}, tmp_path / "code.pth")
    with pytest.raises(CheckpointError, match="no plain file of tensors"):
        load_inception(tmp_path / "code.pth", "cpu")
    torch.save({"a": torch.ones(1)}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match="does not hold torch-fidelity's Inception"):
        load_inception(tmp_path / "other.pth", "cpu")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny CLIP with random weights, stored as transformers stores them."""
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("clip")
    letters = [chr(i) for i in range(ord("a"), ord("z") + 1)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (directory / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1, "pad_token_id": len(words) - 1}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config={**sizes, **ends, "vocab_size": len(words), "max_position_embeddings": 16},
        vision_config={**sizes, "image_size": 16, "patch_size": 8},
        projection_dim=8,
    )
    transformers.CLIPModel(config).save_pretrained(directory)
    transformers.CLIPTokenizer(str(directory / "vocab.json"), str(directory / "merges.txt")).save_pretrained(directory)
    size = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    transformers.CLIPImageProcessorPil(**size).save_pretrained(directory)
    return directory


def test_clip_scores_are_cosines_of_picture_and_caption(clip: Any) -> None:
    images = pixels(4, 20, 20, 3)
    captions = ["a red car", "a dog", "a horse", "a very long caption of a ship at sea"]
    scores = clip_scores(images, captions, clip)
    assert scores.shape == (4,) and (scores >= 0).all() and (scores <= 100).all()
    swapped = clip_scores(images[::-1].copy(), captions[::-1], clip)
    assert torch.allclose(scores, swapped.flip(0), atol=1e-3)
    assert not torch.allclose(scores, clip_scores(images, captions[::-1], clip), atol=1e-3)
    with pytest.raises(CheckpointError, match="no such directory"):
        clip_scores(images, captions, clip / "nowhere")


def test_the_command_prints_figures_with_their_conditions(
    clip: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    captions = ["a red car", "a dog"]
    saved(tmp_path / "samples.npz", pixels(12, 32, 32, 3))
    made = {"samples": 12, "model": "some-model", "steps": 20, "solver": "ddim", "guidance": 7.5, "dtype": "bfloat16"}
    made |= {"schedule": {"work": 0.25, "fingerprint": f"sha256:{'ab' * 32}"}, "vae": {"name": "v", "dtype": "float32"}}
    manifest = {"settings": made, "provenance": {"captions": captions, "seeds": [3, 14]}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    saved(tmp_path / "real.npz", pixels(15, 32, 32, 3, seed=1))
    arguments = [
        "lab",
        "eval",
        "pictures",
        tmp_path,
        "--reference",
        tmp_path / "real.npz",
        "--features",
        "own",
        "--clip",
        clip,
    ]
    monkeypatch.setattr(sys, "argv", ["tenuto", *map(str, arguments), "-o", str(tmp_path / "report.json")])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().out
    assert ended.value.code == 0
    for part in ("CLIP score", "precision, recall", "12 samples of some-model", "20 steps of ddim", "guidance 7.5"):
        assert part in said
    for part in (
        "25% of the unit-steps",
        "sha256:abab",
        "VAE v in float32",
        "bfloat16",
        "seeds 3 to 14",
        "15 pictures",
    ):
        assert part in said
    report = json.loads((tmp_path / "report.json").read_text())
    wanted = clip_scores(read_set(tmp_path).pixels, captions * 6, clip).mean()
    assert report["figures"]["clip_score"][0] == pytest.approx(float(wanted))
