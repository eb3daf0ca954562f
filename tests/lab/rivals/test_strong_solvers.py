"""The solvers reach the exact picture, at their order, at every setting; and the settings are what they say."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tenuto
from tenuto.errors import UsageError
from tenuto_lab.rivals.noise_prediction import Denoiser
from tenuto_lab.rivals.strong_solvers import Setting, best, course, judged, sample, settings, time_of
from tests.helpers.mixtures import NOISE, MixtureDenoiser, table

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # diffusers' DEIS


def start(samples: int = 2) -> Any:
    return torch.randn(samples, 1, 4, 4, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)


def error(setting: Setting, evaluations: int, centres: tuple[float, ...] = (-0.6, 0.5)) -> float:
    """The largest distance from the exact picture, when both start at the same noise level."""
    denoiser = MixtureDenoiser(centres)
    path = course(NOISE, setting, evaluations)
    got = sample(denoiser, NOISE, start(), setting, evaluations)
    assert denoiser.evaluations == evaluations
    end = -1.0 if path.sigmas[-1] == 0 else time_of(table(), path.sigmas[-1])
    return float((got - denoiser.exact(start(), path.times[0], end)).abs().max())


# -------------------------------------------------------------------------------------------------------- settings


def test_there_are_ninety_different_settings() -> None:
    found = settings()
    assert len(found) == len({str(one) for one in found}) == 90
    assert {one.solver for one in found} == {
        *("UniPC 2", "UniPC 3", "DEIS 2", "DEIS 3", "DPM-Solver++ 2", "DPM-Solver++ 3", "DDIM", "Euler")
    }


@pytest.mark.parametrize("levels", ["karras", "exponential"])
def test_levels_are_diffusers_own_where_diffusers_wastes_nothing(levels: Any) -> None:
    import diffusers

    options: dict[str, Any] = {f"use_{levels}_sigmas": True, "beta_schedule": NOISE.schedule}
    theirs = diffusers.UniPCMultistepScheduler(**options, beta_start=NOISE.start, beta_end=NOISE.end)
    theirs.set_timesteps(12)
    ours = course(NOISE, Setting("UniPC", 2, "linspace", levels, "zero", "rounded"), 12)
    np.testing.assert_allclose(ours.sigmas, theirs.sigmas.double().numpy(), rtol=1e-5)
    # exponential times are cut to whole numbers there, not rounded
    assert np.abs(np.array(ours.times) - theirs.timesteps.numpy()).max() <= (0 if levels == "karras" else 1)


def test_no_multistep_solver_takes_a_step_of_length_zero() -> None:
    for setting in settings():
        sigmas = np.array(course(NOISE, setting, 10).sigmas)
        assert len(sigmas) == 11 and np.all(np.diff(sigmas) < 0 if setting.order > 1 else np.diff(sigmas) <= 0), setting
        assert (sigmas[-1] == 0) == (setting.final == "zero")


def test_steps_that_would_repeat_a_timestep_are_refused() -> None:
    with pytest.raises(UsageError, match="no 1000 different steps"):
        course(NOISE, Setting("UniPC", 2, "linspace"), 1000)


def test_the_network_is_told_the_exact_time_or_the_nearest_timestep() -> None:
    exact, rounded = MixtureDenoiser(), MixtureDenoiser()
    sample(exact, NOISE, start(), Setting("UniPC", 2, "linspace", "karras", "zero", "exact"), 8)
    sample(rounded, NOISE, start(), Setting("UniPC", 2, "linspace", "karras", "zero", "rounded"), 8)
    assert any(time != round(time) for time in exact.times)
    assert rounded.times == [round(time) for time in exact.times]
    assert exact.times[0] == 999 and exact.times[-1] == 0


# ----------------------------------------------------------------------------------------------------- convergence


@pytest.mark.parametrize("setting", settings(), ids=str)
def test_every_setting_approaches_the_exact_picture(setting: Setting) -> None:
    coarse, fine = error(setting, 12), error(setting, 96)
    assert fine < 0.05 and fine < coarse / 2


@pytest.mark.parametrize(
    ("method", "order", "least", "most"),
    [("Euler", 1, 1.8, 2.2), ("DPM-Solver++", 2, 3.3, 5), ("DEIS", 2, 3.3, 6), ("UniPC", 2, 6, 12)],
)
def test_twice_as_many_evaluations_divide_the_error_as_the_order_says(
    method: Any, order: int, least: float, most: float
) -> None:
    """UniPC's corrector adds one order."""
    setting = Setting(method, order, "linspace", "exponential", "sigma_min")
    assert least < error(setting, 16, (0.3,)) / error(setting, 32, (0.3,)) < most


@pytest.mark.parametrize("method", ["UniPC", "DEIS", "DPM-Solver++"])
def test_the_third_order_gains_more_than_the_second_would(method: Any) -> None:
    """Not quite the third power, because the first steps have lower orders."""
    setting = Setting(method, 3, "linspace", "exponential", "sigma_min")
    assert error(setting, 8) / error(setting, 32) > 4**2.2


def test_euler_on_the_levels_of_ddim_is_ddim() -> None:
    for final in ("zero", "sigma_min"):
        a, b = (
            sample(MixtureDenoiser(), NOISE, start(), Setting(m, 1, "trailing", "trained", final), 9)
            for m in ("Euler", "DDIM")
        )  # type: ignore[arg-type]
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_strong_solver_beats_ddim_by_far() -> None:
    assert error(Setting("UniPC", 3, "linspace", "exponential", "sigma_min"), 12) < error(Setting("DDIM"), 12) / 5


# -------------------------------------------------------------------------------------------------------- networks


def test_ddim_on_a_model_is_the_products_own(checkpoint: Path) -> None:
    model = tenuto.load(str(checkpoint))
    noise = torch.stack([torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in (3, 4)])
    for guidance in (1.0, 2.0):
        denoiser = Denoiser(model, [0, 2], guidance)
        got = sample(denoiser, denoiser.noise, noise, Setting("DDIM"), 20)
        want = tenuto.generate(model, [0, 2], seed=3, steps=20, guidance=guidance)
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
        assert denoiser.evaluations == 20


def test_a_network_takes_times_between_two_timesteps(checkpoint: Path) -> None:
    denoiser = Denoiser(tenuto.load(str(checkpoint)), [0, 2])
    with torch.inference_mode():
        low, between, high = (denoiser(torch.ones(2, 1, 8, 8), time) for time in (500, 500.5, 501))
    assert not torch.equal(between, low) and not torch.equal(between, high)
    torch.testing.assert_close(between, (low + high) / 2, rtol=0.1, atol=0.1)


# ------------------------------------------------------------------------------------------------------- hindsight


def test_the_best_setting_is_the_one_the_judge_likes_most() -> None:
    denoiser = MixtureDenoiser()
    exact = denoiser.exact(start(), 999, -1)

    def judge(x: Any) -> float:
        return -float((x - exact).square().mean())

    among = [Setting("DDIM"), Setting("UniPC", 2, "linspace", "karras"), Setting("Euler", 1, "trailing")]
    ranked = judged(denoiser, NOISE, start(), 8, judge, among)
    assert [score for score, _ in ranked] == sorted((score for score, _ in ranked), reverse=True)
    assert best(denoiser, NOISE, start(), 8, judge, among) == ranked[0] and ranked[0][1].method == "UniPC"


def test_what_diverged_is_never_the_best() -> None:
    scores = iter([math.nan, 1.0])
    found = best(MixtureDenoiser(), NOISE, start(), 4, lambda x: next(scores), [Setting("DDIM"), Setting("UniPC", 2)])
    assert found[0] == 1.0 and found[1].method == "UniPC"


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="between 1 and 1000"):
        course(NOISE, Setting("DDIM"), 0)
    with pytest.raises(UsageError, match="no solver 'Heun'"):
        course(NOISE, Setting("Heun"), 10)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="No setting has 5 steps"):
        judged(MixtureDenoiser(), NOISE, start(), 5, lambda x: 0.0, [])
