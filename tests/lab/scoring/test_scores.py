"""Scores follow the paper's equations, computed here again in numpy; file and module agree; files are strict."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tenuto
from tenuto.errors import CheckpointError, TenutoError
from tenuto.models.checkpoint import ModuleTensors
from tenuto.scheduling.units import Component, Matrix, Unit
from tenuto_lab.scoring.scores import load_scores, normalised, score_tensors
from tests.conftest import random_dit, write_checkpoint


class Named(dict):
    """Tensors by name, as `score_tensors` reads them."""

    @property
    def shapes(self):
        return {key: tuple(value.shape) for key, value in self.items()}

    def read(self, key):
        return self[key]


def g(*parts: torch.Tensor) -> float:
    """g(W) = ‖W‖_F √ρ(SCR_η(W)), independently."""
    matrix = np.concatenate([part.double().numpy().reshape(len(part), -1) for part in parts])
    sigma2 = np.linalg.svd(matrix, compute_uv=False) ** 2
    k = max(1, len(sigma2) // 10)
    total = sigma2.sum()
    u = math.log((sigma2[:k].sum() + 1e-6 * total) / (sigma2[k:].sum() + 1e-6 * total))
    return math.sqrt(total) * math.sqrt(1 / (1 + math.exp(-u)))


def matrices(**keys):
    return {role: key if isinstance(key, Matrix) else Matrix.whole(key) for role, key in keys.items()}


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    shapes = {"q": (20, 20), "k": (20, 12), "v": (20, 12), "o": (20, 20), "up": (50, 20), "gate": (50, 20)}
    shapes |= {"down": (20, 50), "conv1": (6, 4, 3, 3), "conv2": (6, 6, 3, 3)}
    return Named({key: torch.randn(shape) for key, shape in shapes.items()})


def test_every_kind_of_unit_by_its_equation(tensors):
    t = tensors
    attention = matrices(q="q", k="k", v="v", o="o")
    expected_attention = g(t["o"]) * g(t["v"]) * (1 + g(t["q"]) * g(t["k"]) / math.sqrt(5))
    units = [
        Unit("self", (Component("attention", attention, head_dim=5),), 1),
        Unit("cross", (Component("cross_attention", attention, head_dim=5),), 1),
        Unit("mlp", (Component("mlp", matrices(w1="up", w2="down")),), 1),
        Unit("gated", (Component("mlp", {"w1": Matrix.whole("gate", "up"), "w2": Matrix.whole("down")}),), 1),
        Unit("conv", tuple(Component("conv", matrices(kernel=key)) for key in ("conv1", "conv2")), 1),
        Unit("both", (Component("mlp", matrices(w1="up", w2="down")), Component("conv", matrices(kernel="conv1"))), 1),
    ]
    expected = [
        expected_attention,
        expected_attention,
        g(t["down"]) * g(t["up"]),
        g(t["down"]) * g(t["gate"], t["up"]),
        g(t["conv1"]) + g(t["conv2"]),
        g(t["down"]) * g(t["up"]) + g(t["conv1"]),
    ]
    scores = score_tensors(t, units, model="toy", architecture="toy")
    assert [unit.raw for unit in scores.units] == pytest.approx(expected, rel=1e-9)
    assert [u.score for u in scores.units] == pytest.approx([q / (max(expected) + 1e-12) for q in expected], rel=1e-9)
    assert [unit.kind for unit in scores.units] == ["attention", "cross_attention", "mlp", "mlp", "conv", "group"]


def test_fused_qkv_is_split_before_scoring(network):
    scores = tenuto.score(as_model(network))
    q, k, v = network.blocks[1].attn.qkv.weight.chunk(3)
    o = network.blocks[1].attn.proj.weight
    assert scores.units[2].name == "blocks.1.attn"
    assert scores.units[2].raw == pytest.approx(g(o) * g(v) * (1 + g(q) * g(k) / math.sqrt(8)), rel=1e-9)


def as_model(network):
    from tenuto.models import Model, architecture

    dit = architecture("dit")
    return Model("toy", dit, network.config, (), dit.units(network.config), network, frozenset())


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_normalised_scores_lie_in_the_unit_interval_and_keep_the_order(raw):
    scores = normalised(raw)
    assert all(0 <= score <= 1 for score in scores)
    assert [i for i, _ in sorted(enumerate(raw), key=lambda p: p[1])] == [
        i for i, _ in sorted(enumerate(scores), key=lambda p: (p[1], raw[p[0]]))
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shards", [1, 3])
def test_file_and_module_agree_exactly(tmp_path, dtype, shards):
    network = random_dit().to(dtype)
    path = write_checkpoint(tmp_path / "dit", network, dtype, shards)
    from_file = tenuto.score(str(path))
    from_module = tenuto.score(as_model(network))
    assert from_file.units == from_module.units
    assert from_file.fingerprint == from_module.fingerprint == tenuto.score(tenuto.load(str(path))).fingerprint


def test_scoring_a_file_builds_no_model_and_reads_each_tensor_once(checkpoint, monkeypatch):
    from tenuto.models.checkpoint import Checkpoint

    reads = []
    original = Checkpoint.read
    monkeypatch.setattr(Checkpoint, "read", lambda self, key: reads.append(key) or original(self, key))
    tenuto.score(str(checkpoint))
    assert sorted(reads) == sorted(
        f"blocks.{i}.{name}.weight" for i in range(3) for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    )


def test_a_changed_weight_changes_the_fingerprint(network):
    before = tenuto.score(as_model(network)).fingerprint
    network.blocks[2].mlp.fc1.weight[0, 0] += 1e-6
    assert tenuto.score(as_model(network)).fingerprint != before


def test_a_score_file_comes_back_as_it_went(tmp_path, network):
    scores = tenuto.score(as_model(network))
    scores.save(tmp_path / "scores.json")
    assert load_scores(tmp_path / "scores.json") == scores
    record = json.loads((tmp_path / "scores.json").read_text())
    assert record["eta"] == 1e-6 and record["k_rule"] == "min(d, max(1, floor(0.1 d)))"
    assert record["tenuto_version"] == tenuto.__version__
    unit = record["units"][0]
    assert unit["name"] == "blocks.0.attn" and unit["kind"] == "attention"
    q = unit["components"][0]["matrices"]["q"]
    assert q["shape"] == [16, 16] and q["tensors"] == ["blocks.0.attn.qkv.weight"] and q["part"] == [0, 3]
    assert {"frobenius", "spectral_norm", "stable_rank", "scr", "rho", "g", "k"} <= set(q)


@pytest.mark.parametrize("name", ["tenuto.scores/1", "tenuto.scoring.scores/1"])
def test_a_score_file_of_an_earlier_version_is_read(tmp_path, network, name):
    scores = tenuto.score(as_model(network))
    path = tmp_path / "scores.json"
    scores.save(path)
    assert json.loads(path.read_text())["format"] == "tenuto.scores/1"
    path.write_text(path.read_text().replace("tenuto.scores/1", name))
    assert load_scores(path) == scores


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda r: r.update(surprise=1), "unknown field.*'surprise'"),
        (lambda r: r.pop("eta"), "lacks.*'eta'"),
        (lambda r: r.update(format="tenuto_lab.scoring.scores/99"), "not a score file this version reads"),
        (lambda r: r["units"][1].update(score=1.5), r"unit 2.*\[0, 1\]"),
        (lambda r: r["units"][0].update(raw="much"), "'raw' should be"),
        (lambda r: r.update(units=[]), "no units"),
        (lambda r: r["units"][0]["components"][0].update(kind="magic"), "kind is one of"),
    ],
)
def test_a_damaged_score_file_is_refused_with_its_reason(tmp_path, network, damage, message):
    path = tmp_path / "scores.json"
    tenuto.score(as_model(network)).save(path)
    record = json.loads(path.read_text())
    damage(record)
    path.write_text(json.dumps(record))
    with pytest.raises(TenutoError, match=message):
        load_scores(path)


def test_nan_in_a_weight_is_named(network):
    network.blocks[1].mlp.fc2.weight[3, 3] = float("nan")
    with pytest.raises(CheckpointError, match=r"blocks\.1\.mlp\.fc2\.weight"):
        tenuto.score(as_model(network))


def test_a_missing_tensor_is_named(tensors):
    units = [Unit("mlp", (Component("mlp", matrices(w1="up", w2="sideways")),), 1)]
    with pytest.raises(CheckpointError, match="sideways"):
        score_tensors(tensors, units, model="toy", architecture="toy")


def test_module_tensors_are_those_of_the_state_dict(network):
    assert set(ModuleTensors(network).shapes) == set(network.state_dict())


def test_an_interrupted_scoring_goes_on_where_it_stopped(checkpoint, tmp_path, monkeypatch):
    from tenuto.models import open_model
    from tenuto_lab.scoring import scores as module
    from tenuto_lab.scoring.scoring_models import journal_of

    complete = tenuto.score(str(checkpoint))
    path, computed = tmp_path / "scores.json.journal", []

    def score():
        return tenuto.score(str(checkpoint), journal=journal_of(path, open_model(str(checkpoint)), 1e-6))

    def counting(weight, eta, name):
        if len(computed) == 5:
            raise KeyboardInterrupt
        computed.append(name)
        return original(weight, eta, name)

    original = module.spectrum
    monkeypatch.setattr(module, "spectrum", counting)
    with pytest.raises(KeyboardInterrupt):
        score()
    with path.open("a") as file:
        file.write('{"half a li')  # as a killed process leaves it
    monkeypatch.setattr(module, "spectrum", lambda *args: computed.append(args[2]) or original(*args))
    assert score() == complete
    assert len(computed) == len(set(computed))  # nothing was computed twice
    assert score() == complete and len(computed) == len(set(computed))  # the notes stay until the result is safe


@pytest.mark.parametrize("text", ["", "3\n", '{"job": {"model": "another"}}\n', "\x80\x81", '{"job"'])
def test_a_journal_of_other_weights_or_of_nonsense_is_not_believed(checkpoint, tmp_path, text):
    from tenuto.models import open_model
    from tenuto_lab.scoring.scoring_models import journal_of

    path = tmp_path / "journal"
    path.write_text(text, encoding="latin-1")
    journal = journal_of(path, open_model(str(checkpoint)), 1e-6)
    journal.note("blocks.0.attn.qkv.weight", {"spectra": []})  # nor is a note of another shape
    assert tenuto.score(str(checkpoint), journal=journal) == tenuto.score(str(checkpoint))
    journal.done()
    assert not path.exists()
