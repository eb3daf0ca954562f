"""Whole-output caches: each formula against numbers worked out by hand or another way, and exactly N evaluations."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tenuto.errors import UsageError
from tenuto_lab.rivals import TaylorSeer
from tenuto_lab.rivals.computed_steps import evenly, growing, in_windows, periodic
from tenuto_lab.rivals.dmd import dmd, mode_weights
from tenuto_lab.rivals.predictors import (
    Known,
    Target,
    ab_cache,
    foca,
    fsampler,
    hermite,
    hermite_polynomial,
    spectrum,
    taylor,
    zeus,
)
from tenuto_lab.rivals.strong_solvers import Setting, course, sample
from tenuto_lab.rivals.whole_output import Cache, draws, full_run, methods, sample_held
from tests.helpers.mixtures import NOISE, MixtureDenoiser

ZERO = torch.zeros(1, 1)


def known(step: int, output: float, *, sigma: float | None = None, x: float = 0.0, computed: bool = True) -> Known:
    sigma = 10.0 - step if sigma is None else sigma
    return Known(step, sigma, torch.full((1, 1), x), torch.full((1, 1), output), computed)


def target(step: int, sigma: float | None = None, x: float = 0.0, steps: int = 50) -> Target:
    return Target(step, 10.0 - step if sigma is None else sigma, torch.full((1, 1), x), steps)


def start() -> Any:
    return torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)


# -------------------------------------------------------------------------------------------------------- formulas


def test_zeus_extrapolates_at_odd_and_repeats_at_even_distances() -> None:
    history = [known(0, 1.0), known(3, 4.0)]
    assert [zeus(history, target(step)).item() for step in (4, 5, 6, 7)] == [7, 4, 7, 4]  # 2 · 4 − 1, or 4
    assert zeus([known(0, 1.0)], target(1)).item() == 1


@pytest.mark.parametrize("points", [2, 3, 4])
def test_fsampler_is_the_polynomial_in_sigma(points: int) -> None:
    sigmas, outputs, xs = [14.0, 9.0, 5.0, 2.0], [0.9, 1.1, 0.7, 0.4], [1.0, 0.8, 0.3, -0.2]
    history = [known(i, o, sigma=s, x=x) for i, (s, o, x) in enumerate(zip(sigmas, outputs, xs, strict=True))]
    at = target(4, sigma=1.5, x=0.1)
    s, o, x = (np.array(one[-points:]) for one in (sigmas, outputs, xs))
    noise = np.polyval(np.polyfit(s, s * o, points - 1), 1.5) / 1.5
    assert fsampler(history, at, points).item() == pytest.approx(noise, rel=1e-4)
    clean = np.polyval(np.polyfit(s, x * np.sqrt(1 + s**2) - s * o, points - 1), 1.5)
    want = (0.1 * math.sqrt(1 + 1.5**2) - clean) / 1.5
    assert fsampler(history, at, points, "clean").item() == pytest.approx(want, rel=1e-4)


def test_ab_cache_takes_the_difference_of_order_k_to_be_zero() -> None:
    history = [known(0, 1.0), known(1, 3.0), known(2, 7.0), known(3, 12.0, computed=False)]
    assert ab_cache(history, target(4), 2).item() == 2 * 12 - 7
    assert ab_cache(history, target(4), 3).item() == 3 * 12 - 3 * 7 + 3
    assert ab_cache(history, target(4), 3, "computed").item() == 3 * 7 - 3 * 3 + 1
    assert ab_cache(history[:1], target(1), 3).item() == 1  # the order is that of what there is


@pytest.mark.parametrize("blend", [1.0, 0.5])
def test_spectrum_is_a_ridge_regression_on_chebyshev_polynomials(blend: float) -> None:
    steps, outputs = np.array([0, 1, 2, 5, 9, 14]), np.array([1.0, 0.8, 0.9, 0.4, 0.3, 0.1])

    def basis(step: Any) -> Any:
        return np.stack([np.cos(k * np.arccos(2 * np.asarray(step) / 20 - 1)) for k in range(5)], axis=-1)

    # the ridge as five more observations of zero
    tall = np.concatenate([basis(steps), math.sqrt(0.1) * np.eye(5)])
    coefficients = np.linalg.lstsq(tall, np.concatenate([outputs, np.zeros(5)]), rcond=None)[0]
    linear = outputs[-1] + (17 - 14) / (14 - 9) * (outputs[-1] - outputs[-2])
    want = blend * basis(17) @ coefficients + (1 - blend) * linear
    history = [known(int(s), o) for s, o in zip(steps, outputs, strict=True)]
    assert spectrum(history, target(17, steps=20), blend=blend).item() == pytest.approx(want, rel=1e-5)


def test_taylor_is_our_taylorseer_with_the_output_as_its_only_unit() -> None:
    values = [3.0, 4.0, 0.0, 0.0, 10.0, 0.0, 0.0, 1.0, 0.0, 0.0]

    def network(step: int, residual: Any) -> Any:
        return residual("blocks.0.mlp", torch.zeros(1, 1), lambda: torch.full((1, 1), values[step]))

    rival = TaylorSeer(network, every=3, order=2)  # refreshes at 0, 1, 4, 7
    generation, history = rival.start(), []
    for step in range(10):
        want = generation(step).item()
        if rival.refreshes(step):
            history.append(known(step, want))
        else:
            assert taylor(history, target(step), 2).item() == pytest.approx(want, rel=1e-5), step


def test_hermite_is_hicaches_formula() -> None:
    assert [hermite_polynomial(n, 1.5) for n in range(4)] == pytest.approx([1, 3, 4 * 2.25 - 2, 8 * 1.5**3 - 12 * 1.5])
    history, c = [known(0, 1.0), known(4, 3.0), known(8, 9.0)], 0.5
    d1, before = (9 - 3) / 4, (3 - 1) / 4
    d2 = (d1 - before) / 4
    want = 9 + d1 * c * 2 * (c * 3) + d2 / 2 * c**2 * (4 * (c * 3) ** 2 - 2)
    assert hermite(history, target(11), 2, c).item() == pytest.approx(want)
    # contracted by √½, the first order is TaylorSeer's
    assert hermite(history, target(11), 1, math.sqrt(0.5)).item() == pytest.approx(
        taylor(history, target(11), 1).item()
    )


@pytest.mark.parametrize("scaled", [False, True])
def test_foca_is_cache_dits_recursion(scaled: bool) -> None:
    """cache-dit keeps the last two values and the last two evaluated ones; worked out here step by step."""
    values = {0: 1.0, 1: 2.0, 6: 4.0}
    history = []
    last, before, newest, second, at, earlier = None, None, None, None, 0, 0
    for step in range(11):
        if step in values:
            before, earlier, last, at = last, at, values[step], step
            second, newest = newest, values[step]
            history.append(known(step, values[step]))
            continue
        assert last is not None and before is not None and newest is not None and second is not None
        ahead = step - at
        slope = (last - before) / ((at - earlier) if scaled else 1) + newest - second
        jump = min(ahead, 3) / 2 * slope
        want = last + (jump if ahead <= 3 else 3 / ahead * jump)
        got = foca(history, target(step), scaled=scaled, horizon=3.0).item()
        assert got == pytest.approx(want, rel=1e-5)
        history.append(known(step, got, computed=False))
        second, newest = newest, want


def test_dmd_is_exact_on_a_sum_of_exponentials_and_falls_back_to_hermite() -> None:
    modes = torch.randn(2, 2, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def at(step: float) -> Any:
        return modes[0] * 0.9**step + modes[1] * 1.05**step

    history = [Known(step, 1.0, ZERO, at(step)) for step in (0, 1, 5, 9, 13, 17)]  # even distances from 1 on
    torch.testing.assert_close(dmd(history, target(19)), at(19), rtol=1e-5, atol=1e-6)
    few = history[:4]  # three at even distances
    assert torch.equal(dmd(few, target(11)), hermite(few, target(11), 2))


def test_dmd_is_the_published_algorithm_on_whole_vectors() -> None:
    outputs = torch.randn(5, 30, generator=torch.Generator().manual_seed(2), dtype=torch.float64).cumsum(dim=0)
    snapshots = outputs.mT
    before, after = snapshots[:, :-1], snapshots[:, 1:]
    u, s, vh = torch.linalg.svd(before, full_matrices=False)
    inverse = (1 / (s + 1e-8)).to(torch.complex128)
    poles, vectors = torch.linalg.eig((u.mT @ after @ vh.mT).to(torch.complex128) * inverse)
    modes = ((after @ vh.mT).to(torch.complex128) * inverse) @ vectors
    amplitudes = torch.linalg.lstsq(modes, snapshots[:, -1:].to(torch.complex128)).solution[:, 0]
    want = (modes @ (poles**0.75 * amplitudes)).real
    torch.testing.assert_close(snapshots @ mode_weights(outputs @ outputs.mT, 0.75), want, rtol=1e-6, atol=1e-8)
    assert mode_weights(torch.zeros(4, 4), 0.5).tolist() == [0, 0, 0, 1]


def test_nothing_can_be_predicted_before_the_first_evaluation() -> None:
    with pytest.raises(UsageError, match="first step must be evaluated"):
        zeus([known(0, 1.0, computed=False)], target(1))


# ------------------------------------------------------------------------------------------------------- placement


@pytest.mark.parametrize("steps", [7, 50])
def test_every_rule_evaluates_exactly_as_often_as_asked(steps: int) -> None:
    rules = {cache.placement for caches in methods().values() for cache in caches}
    for rule in rules:
        for evaluations in range(1, steps + 1):
            found = rule(steps, evaluations)
            assert len(found) == len(set(found)) == evaluations and list(found) == sorted(found), rule
            assert found[0] == 0 and found[-1] < steps


def test_rules_place_as_published() -> None:
    assert periodic(50, 10, warmup=3) == (0, 1, 2, 8, 14, 20, 26, 32, 38, 44)
    assert evenly(50, 6, first=2, last=1) == (0, 1, 13, 25, 37, 49)
    assert len(in_windows(50, 5, 2, 0.75)) == 14 and len(in_windows(50, 5, 2, 3.0)) == 10  # Spectrum's README
    gaps = np.diff(growing(50, 12)[4:])
    assert np.all(np.diff(gaps) >= 0) and gaps[-1] > gaps[0]
    with pytest.raises(UsageError, match="Between 1 and 50"):
        evenly(50, 51)


# -------------------------------------------------------------------------------------------------------- sampling


@pytest.mark.parametrize("method", methods())
def test_every_method_samples_with_exactly_n_evaluations(method: str) -> None:
    denoiser, count = MixtureDenoiser(), 0
    exact = sample(denoiser, NOISE, start(), full_run(NOISE), 30)
    denoiser.evaluations = 0
    best = math.inf
    for _, x in draws(method, denoiser, NOISE, start(), 30, 10):
        count += 1
        assert denoiser.evaluations == 10 * count and x.shape == exact.shape
        error = float((x - exact).abs().mean())
        best = min(best, error) if math.isfinite(error) else best
    fewer = float((sample(MixtureDenoiser(), NOISE, start(), full_run(NOISE), 10) - exact).abs().mean())
    assert count > 1 and best < fewer  # nearer to the full run than as many plain steps


@pytest.mark.parametrize("method", methods())
def test_evaluating_every_step_is_the_full_run(method: str) -> None:
    want = sample(MixtureDenoiser(), NOISE, start(), full_run(NOISE), 8)
    for _, x in draws(method, MixtureDenoiser(), NOISE, start(), 8, 8):
        assert torch.equal(x, want)


def test_another_scheduler_can_be_held() -> None:
    setting = Setting("DPM-Solver++", 2, "linspace", "karras")
    want = sample(MixtureDenoiser(), NOISE, start(), setting, 40)
    cache = Cache(partial(taylor, order=2), partial(evenly, first=2, last=1))
    got = sample_held(MixtureDenoiser(), course(NOISE, setting, 40), start(), cache, 20)
    assert float((got - want).abs().max()) < 0.02


def test_settings_have_names_and_unknown_methods_are_refused() -> None:
    for caches in methods().values():
        assert len({str(cache) for cache in caches}) == len(caches)
    with pytest.raises(UsageError, match="no whole-output cache 'Zeus'"):
        next(draws("Zeus", MixtureDenoiser(), NOISE, start(), 10, 5))
