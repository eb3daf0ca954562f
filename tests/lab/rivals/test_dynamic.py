"""Caches that decide while they run: exact where they save nothing, the published decision elsewhere, N where asked."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tenuto
from tenuto.errors import UsageError
from tenuto.models import Model
from tenuto_lab.networks import unet, uvit
from tenuto_lab.networks.uvit import UViT, UViTConfig
from tenuto_lab.rivals import FirstBlock, first_block
from tenuto_lab.rivals.dual_block import DualBlock
from tenuto_lab.rivals.dynamic import NAMES, Case, Run, at_cost, draws, unable
from tenuto_lab.rivals.easy_cache import EasyCache
from tenuto_lab.rivals.noise_prediction import Denoiser
from tenuto_lab.rivals.strong_solvers import sample
from tenuto_lab.rivals.token_caches import Calibration, MovedInput, MovedSize, TokenCache, filtered
from tenuto_lab.rivals.trunk import Stem, evaluated, stem_of
from tenuto_lab.rivals.whole_output import full_run
from tenuto_lab.seam.attachment import attach
from tests.conftest import random_dit
from tests.helpers.denoisers import make

UNITS = [f"blocks.{i}.{kind}" for i in range(3) for kind in ("attn", "mlp")]
STEPS = 8


def random_uvit() -> UViT:
    torch.manual_seed(0)
    network = UViT(UViTConfig(img_size=8, in_chans=1, embed_dim=16, depth=2, num_heads=2, num_classes=5))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return network.eval().requires_grad_(False)


def uvit_model() -> Model:
    network = random_uvit()
    return Model("tiny", uvit.ARCHITECTURE, network.config, (), uvit.units(network.config), network)


def unet_model() -> Model:
    network = make("sdxl")
    return Model("tiny", unet.ARCHITECTURE, None, (), attach(network).units, network)


def given(steps: int) -> list[Any]:
    torch.manual_seed(0)
    first = torch.randn(2, 1, 8, 8)
    return [(first * (1 - 0.05 * s), torch.tensor([900.0 - 40 * s] * 2), torch.tensor([2, 0])) for s in range(steps)]


def run_all(rival: Any, steps: int = STEPS) -> list[Any]:
    generation = rival.start()
    with torch.inference_mode():
        return [generation(*one) for one in given(steps)]


def stem(value: float) -> Stem:
    tokens = torch.full((1, 4, 2), value)
    return Stem(tokens, tokens, 4, lambda after: after)


def case(model: Model, steps: int = 12) -> Case:
    noise = torch.randn(2, *model.config.sample_shape, generator=torch.Generator().manual_seed(0))
    return Case(model, [0, 2], noise, steps)


# ----------------------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("network", [random_dit(), random_uvit()], ids=["DiT", "U-ViT"])
def test_the_head_makes_the_networks_output_of_its_tokens(network: Any) -> None:
    call = given(1)[0]
    output, after = evaluated(network, *call)
    parts = stem_of(network, *call)
    torch.testing.assert_close(parts.head(after), output, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output, network(*call), rtol=1e-4, atol=1e-4)
    assert parts.pictured == 16 and parts.tokens.shape == after.shape


def test_the_stem_sees_what_the_first_attention_is_given() -> None:
    network, seen = random_dit(), []
    network.layers[0].attn.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    call = given(1)[0]
    attended = stem_of(network, *call).attended
    network(*call)
    torch.testing.assert_close(attended, seen[0], rtol=1e-4, atol=1e-5)


# -------------------------------------------------------------------------------------------------- saving nothing


@pytest.mark.parametrize(
    "make_rival",
    [
        lambda network: TokenCache(network, lambda: MovedInput(STEPS, 0.0)),
        lambda network: TokenCache(network, lambda: MovedSize([1.5] * STEPS, 0.0, STEPS, 0.0)),
        lambda network: EasyCache(network, STEPS, 0.0),
        lambda network: DualBlock(network, UNITS, 0.0),
        lambda network: Calibration(network),
    ],
    ids=["TeaCache", "MagCache", "EasyCache", "DBCache", "calibration"],
)
def test_a_cache_that_saves_nothing_is_full_inference(make_rival: Any) -> None:
    network = random_dit()
    rival = make_rival(network)
    for got, call in zip(run_all(rival), given(STEPS), strict=True):
        torch.testing.assert_close(got, network(*call), rtol=1e-4, atol=1e-4)
    assert not rival.met or rival.work == 1


def test_a_held_step_adds_what_the_blocks_added_last() -> None:
    network = random_dit()
    rival = TokenCache(network, lambda: MovedInput(STEPS, math.inf))
    got = run_all(rival, 3)
    first, third = given(3)[0], given(3)[2]
    added = evaluated(network, *first)[1] - stem_of(network, *first).tokens
    parts = stem_of(network, *third)
    torch.testing.assert_close(got[2], parts.head(parts.tokens + added), rtol=1e-4, atol=1e-4)
    assert rival.work == pytest.approx(1 / 3)


# ------------------------------------------------------------------------------------------------------- decisions


def test_teacache_sums_the_inputs_changes_and_evaluates_the_first_and_the_last_step() -> None:
    decide = MovedInput(steps=6, threshold=0.25)
    inputs = [1.0, 1.1, 1.2, 1.5, 1.5, 1.5]  # changes: 0.1, 0.0909 (sum 0.19), 0.25 (0.44), 0, 0
    assert [decide(stem(value), step) for step, value in enumerate(inputs)] == [True, False, False, True, False, True]
    doubled = MovedInput(steps=6, threshold=0.25, changed=lambda change: 2 * change)
    assert [doubled(stem(value), step) for step, value in enumerate(inputs)] == [True, False, True, True, False, True]


def test_magcache_accumulates_the_ratios_error() -> None:
    ratios = [1.0, 1.0, 1.1, 1.1, 1.2, 1.0, 1.0, 1.0, 1.0, 1.0]
    # retained: step 0. Step 1: 1.0 → 0; 2: 1.1 → 0.1; 3: 1.21 → 0.31 > 0.3: evaluated, and from there on anew
    decide = MovedSize(ratios, threshold=0.3, longest=9)
    assert [decide(None, step) for step in range(10)] == [True, False, False, True, False, True, *[False] * 4]
    short = MovedSize([1.0] * 7, threshold=0.3, longest=2, retained=0.3)
    assert [short(None, step) for step in range(7)] == [True, True, False, False, True, False, False]


def test_seacache_filters_the_picture_as_its_noise_level_says() -> None:
    torch.manual_seed(0)
    tokens = torch.randn(2, 17, 3)  # a token that is no patch, then 4 × 4 patches
    sigma = 2.0
    got = filtered(Stem(tokens, tokens, 16, lambda after: after), sigma)
    a, b = 1 / math.sqrt(5), 2 / math.sqrt(5)
    gain = np.array([a / (a**2 + b**2 * f**2) if f else 1 / a for f in (0, 0.25, 0.5, 0.25)])
    both = np.outer(gain, gain)
    picture = tokens[:, 1:].reshape(2, 4, 4, 3).numpy()
    want = np.fft.ifft2(np.fft.fft2(picture, axes=(1, 2)) * (both / both.mean())[None, :, :, None], axes=(1, 2)).real
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hold", ["difference", "output"])
def test_easycache_estimates_the_outputs_change_from_the_inputs(hold: Any) -> None:
    inputs = [0.0, 1.0, 1.4, 1.8, 2.2, 5.0]  # outputs are 10 + 3 x, so k = 3

    def network(x: Any, residual: Any) -> Any:
        return 10 + 3 * x

    rival = EasyCache(network, steps=6, threshold=0.2, retained=2, hold=hold)
    generation = rival.start()
    got = [generation(torch.full((1, 1), x)).item() for x in inputs]
    # estimates from step 2 on: 3 · 0.4 / 13 = 0.092, then 0.185, then 0.277: step 4 is evaluated; so is the last step
    held = [13.0, 13.0] if hold == "output" else [1.4 + 12, 1.8 + 12]
    assert got == pytest.approx([10, 13, *held, 16.6, 25])
    assert rival.computed["network"] == 4


def test_dbcache_with_one_first_block_is_the_first_block_cache() -> None:
    network, threshold = random_dit(), 1.0
    a, b = DualBlock(network, UNITS, threshold), FirstBlock(network, first_block(UNITS), threshold)
    torch.testing.assert_close(run_all(a), run_all(b), rtol=1e-4, atol=1e-4)
    assert a.computed == b.computed and 1 / 3 < a.work < 1


def test_dbcache_computes_its_first_and_last_blocks_and_continues_the_others() -> None:
    def network(step: int, residual: Any) -> Any:
        h = residual("blocks.0.mlp", torch.zeros(1, 1), lambda: torch.ones(1, 1))
        h = residual("blocks.1.mlp", h, lambda: torch.full((1, 1), 10.0 * step**2))
        return residual("blocks.2.mlp", h, lambda: torch.full((1, 1), 1000.0 * step))

    units = [f"blocks.{i}.mlp" for i in range(3)]
    for order, predicted in ((0, [10, 10]), (1, [20, 30])):  # from 0 and 10, at steps 0 and 1
        rival = DualBlock(network, units, 0.1, 1, 1, order=order, warmup=2, longest=2)
        generation = rival.start()
        got = [generation(step).item() for step in range(6)]
        held = [1 + value + 1000 * step for value, step in zip(predicted, (2, 3), strict=True)]
        assert got[:5] == [1, 1 + 10 + 1000, *held, 1 + 160 + 4000]  # two held in a row, then a full one
        assert rival.computed == {"blocks.0.mlp": 6, "blocks.1.mlp": 3, "blocks.2.mlp": 6}


def test_a_calibration_measures_changes_and_sizes() -> None:
    network = random_dit()
    calibration = Calibration(network)
    outputs = run_all(calibration)
    assert len(calibration.ratios) == STEPS and calibration.inputs[0] == 0 and calibration.ratios[0] == 1
    want = (outputs[3] - outputs[2]).abs().mean() / outputs[2].abs().mean()
    assert calibration.outputs[3] == pytest.approx(float(want), rel=1e-4)
    calls = given(STEPS)
    added = [evaluated(network, *call)[1] - stem_of(network, *call).tokens for call in calls[2:4]]
    assert calibration.ratios[3] == pytest.approx(
        float((added[1].norm(dim=-1) / added[0].norm(dim=-1)).mean()), rel=1e-3
    )


def test_teacaches_polynomial_is_fitted_to_the_measured_changes() -> None:
    calibration = Calibration(random_dit())
    calibration.inputs = [0.0, *np.linspace(0.1, 0.5, 9)]
    calibration.outputs = [0.0, *(0.2 + x - 3 * x**4 for x in calibration.inputs[1:])]
    assert calibration.polynomial()(0.33) == pytest.approx(0.2 + 0.33 - 3 * 0.33**4, rel=1e-6)


# --------------------------------------------------------------------------------------------------------- searching


def test_the_threshold_for_a_cost_is_found() -> None:
    runs = []

    def run(threshold: float) -> Any:
        runs.append(threshold)
        return Run(50 / (1 + 10 * threshold), torch.zeros(1))

    threshold, found = at_cost(run, 10)
    assert (
        found.evaluations == pytest.approx(10, abs=0.25)
        and threshold == pytest.approx(0.4, rel=0.1)
        and len(runs) <= 12
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["DiT", "U-ViT"])
def test_every_cache_draws_at_about_n_evaluations(name: str, kind: str, checkpoint: Path) -> None:
    model = tenuto.load(str(checkpoint)) if kind == "DiT" else uvit_model()
    found = list(draws(name, one := case(model), 8))
    assert found
    for drawn in found:
        assert not isinstance(drawn, str), drawn
        setting, run = drawn
        assert run.x.shape == one.noise.shape and abs(run.evaluations - 8) <= 2 and "threshold" in setting


def test_a_cache_at_full_cost_is_the_full_run(checkpoint: Path) -> None:
    model = tenuto.load(str(checkpoint))
    one = case(model)
    cost, x, seconds = one.draw(DualBlock(model.network, UNITS, 0.0))
    denoiser = Denoiser(model, one.wanted)
    torch.testing.assert_close(x, sample(denoiser, denoiser.noise, one.noise, full_run(denoiser.noise), 12))
    assert cost == 12 and seconds > 0


def test_a_cache_that_cannot_run_on_a_unet_says_why() -> None:
    model = unet_model()
    for name in ("TeaCache", "SeaCache", "MagCache", "DBCache"):
        reason = unable(name, model)
        assert reason is not None and "no stream of tokens" in reason
        assert list(draws(name, Case(model, ["a"], torch.zeros(1), 4), 2)) == [reason]
    assert unable("EasyCache", model) is None and unable("FirstBlockCache", model) is None
    with pytest.raises(UsageError, match="cannot run: the UNet2DConditionModel has no stream"):
        TokenCache(model.network, lambda: MovedInput(4, 0.1))
    with pytest.raises(UsageError, match="leave none to hold"):
        DualBlock(random_dit(), UNITS, 0.1, 2, 1)
    with pytest.raises(UsageError, match="not negative"):
        EasyCache(random_dit(), 4, math.nan)
