"""Lemma 2 and Theorem 1 against the truth, and scores of quantised weights."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tenuto
from tenuto.errors import UsageError
from tenuto.sampling.pictures import Sampling, make_solver
from tenuto_lab.paper import Lab
from tenuto_lab.probing.audit import branch_inputs
from tenuto_lab.probing.audit_inputs import ddim_betas
from tenuto_lab.probing.bound import _norm, bound, branch_bound, ddim_alphas, slopes
from tenuto_lab.probing.quantised import quantised, scores_quantised
from tests.conftest import random_dit, write_checkpoint

STEPS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    stored = write_checkpoint(tmp_path_factory.mktemp("model") / "dit", random_dit(depth=2))
    return tenuto.load(str(stored), dtype=torch.float64)


@pytest.fixture(scope="module")
def found(model: Any) -> Any:
    solver = make_solver(model.noise, Sampling(steps=STEPS))
    levels = [float(solver.alphas_cumprod[t]) for t in solver.timesteps] + [float(solver.final_alpha_cumprod)]
    return bound(
        model,
        tenuto.score(model),
        lambda executor: tenuto.generate(model, [0, 1], steps=STEPS, executor=executor, guidance=1.0),
        ddim_betas(model.noise, STEPS),
        ddim_alphas(levels),
        last=3,
    )


def test_the_bounds_lie_above_the_truth(found: Any) -> None:
    """On a network without large gates the argument's factor is a bound of the branch that was measured."""
    assert (found.lipschitz > 0).all() and (found.measured > 0).all() and (found.errors > 0).all()
    assert (found.lipschitz >= found.measured).all() and found.lemma_looseness >= 1
    assert found.theorem_looseness > 1 and found.broken <= len(found.units)
    assert found.order.n == len(found.units) == 4


def test_the_slope_of_an_mlp_is_at_most_its_norms(model: Any) -> None:
    """κ ‖W_2‖ ‖W_1‖ / σ, by hand."""
    unit = tenuto.score(model).units[1]
    x = torch.randn(2, 16, 16, dtype=torch.float64)
    block = model.network.blocks[0].mlp
    norms = [float(torch.linalg.matrix_norm(one.weight, 2)) for one in (block.fc1, block.fc2)]
    assert branch_bound(unit, x) == pytest.approx(1.13 * norms[0] * norms[1] / float(x.std(-1).min()), rel=1e-6)


def test_the_norms_scale_counts_and_rmsnorm_divides_by_the_root_mean_square(model: Any) -> None:
    unit = tenuto.score(model).units[1]
    x = 3 + torch.randn(2, 16, 16, dtype=torch.float64)
    rms = float(x.square().mean(-1).sqrt().min())
    alone = branch_bound(unit, x)
    assert branch_bound(unit, x, gain=2.0) == pytest.approx(2 * alone)
    assert branch_bound(unit, x, rms=True) == pytest.approx(alone * float(x.std(-1).min()) / rms)


def test_lemma_2_bounds_the_slopes_of_a_language_model() -> None:
    """Text takes no steps of DDIM, so the theorem says nothing of it. The lemma does."""
    bench = Lab(("small-llada",), 1, 1, 4).bench("small-llada")
    found = slopes(bench.model, bench.scores, bench.sample(4, 1), last=1)
    assert len(found.units) == 12 and found.too_steep == 0 and found.lemma_looseness > 1
    names = dict(bench.model.network.named_parameters())
    scale = float(names["model.transformer.blocks.0.ff_norm.weight"].abs().max())
    assert _norm(bench.model, bench.scores.units[1]) == (scale, True)


def test_ddims_alphas_are_what_it_multiplies_the_state_by(model: Any) -> None:
    solver = make_solver(model.noise, Sampling(steps=STEPS))
    levels = [float(solver.alphas_cumprod[t]) for t in solver.timesteps] + [float(solver.final_alpha_cumprod)]
    x = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    steps = [float(solver.step(0 * x, t, x).prev_sample.mean()) for t in solver.timesteps]
    assert ddim_alphas(levels) == pytest.approx(steps, rel=1e-5)


def test_what_the_argument_does_not_cover_is_refused(model: Any) -> None:
    other = replace(model, architecture=replace(model.architecture, name="unet"))
    with pytest.raises(UsageError, match="covers dit, uvit, llada"):
        bound(other, tenuto.score(model), lambda one: None, [], [], last=1)


def test_a_unets_residual_block_reads_its_input_and_not_its_shortcut() -> None:
    model = tenuto.load("tiny-sdxl")
    names = [unit.name for unit in model.units]
    modules = dict(model.network.denoiser.named_modules())
    changing = [name for name in names if getattr(modules.get(name), "conv_shortcut", None) is not None]
    found: dict[str, torch.Tensor] = {}
    with torch.no_grad(), branch_inputs(model.network, names, found):
        x, words = (
            torch.randn(1, *model.config.sample_shape),
            torch.randn(1, 8, model.config.get("cross_attention_dim", 0)),
        )
        pooled = model.config.get("projection_class_embeddings_input_dim", 0) - 6 * model.config.get(
            "addition_time_embed_dim", 0
        )
        added = {"text_embeds": torch.zeros(1, pooled), "time_ids": torch.ones(1, 6)}
        model.network(x, torch.tensor([500]), words, added)
    assert changing and set(found) == set(changing)
    for name in changing:
        assert found[name].shape[1] == modules[name].conv1.in_channels != modules[name].conv1.out_channels
    assert not any(modules[name]._forward_pre_hooks for name in changing)


@pytest.mark.parametrize(("bits", "most"), [("int8", 0.01), ("fp8", 0.07), ("int4", 0.15)])
def test_quantised_weights_are_near_and_scores_follow(bits: Any, most: float, model: Any) -> None:
    weight = torch.randn(24, 100, generator=torch.Generator().manual_seed(0))
    off = float((quantised(weight, bits) - weight).norm() / weight.norm())
    assert 0 < off < most
    scale = weight.abs().amax(1, keepdim=True) / 127
    if bits == "int8":
        assert torch.allclose(quantised(weight, bits), (weight / scale).round() * scale)
    before, after = tenuto.score(model), scores_quantised(model, bits)
    changes = [abs(a.score - b.score) for a, b in zip(before.units, after.units, strict=True)]
    assert 0 < max(changes) < 0.1 and before.fingerprint != after.fingerprint
    assert scores_quantised(model, bits, "block").granularity == "block"


def test_other_bits_are_refused() -> None:
    with pytest.raises(UsageError, match="int8, fp8, int4"):
        quantised(torch.zeros(2, 2), "int3")  # type: ignore[arg-type]
    assert np.isfinite(quantised(torch.zeros(2, 2), "int4").numpy()).all()
