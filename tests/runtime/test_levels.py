"""What is known of a scheduler before it runs: its noise levels, whether it adds noise, or why nothing is known."""

import copy
import inspect
import math
from typing import Any

import diffusers
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DEISMultistepScheduler,
    DPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)
from torch import Tensor

from tenuto.runtime.levels import Levels, nature_of

KNOWN = [
    "CogVideoXDDIM",
    "DDIM",
    "DDIMParallel",
    "DEISMultistep",
    "DPMSolverMultistep",
    "DPMSolverMultistepInverse",
    "DPMSolverSinglestep",
    "EDMDPMSolverMultistep",
    "EDMEuler",
    "EulerDiscrete",
    "FlowMatchEulerDiscrete",
    "FlowMatchHeunDiscrete",
    "HeunDiscrete",
    "IPNDM",
    "KDPM2Discrete",
    "LMSDiscrete",
    "PNDM",
    "UniPCMultistep",
]
NOISY = [
    "CMStochasticIterative",
    "CogVideoXDPM",
    "DDPM",
    "DDPMParallel",
    "DDPMWuerstchen",
    "EulerAncestralDiscrete",
    "FlowMatchLCM",
    "KDPM2AncestralDiscrete",
    "LCM",
    "LTXEulerAncestralRF",
    "RePaint",
    "SASolver",
    "TCD",
    "UnCLIP",
]
UNKNOWN = ["DDIMInverse", "KarrasVe", "ScoreSdeVe"]  # and noise is not seen, either


def made(name: str, steps: int = 12, **config: Any) -> Any:
    """diffusers' scheduler of this name. Older versions of diffusers have fewer of them."""
    kind = getattr(diffusers, f"{name}Scheduler", None)
    if kind is None:
        pytest.skip(f"this diffusers has no {name}Scheduler")
    scheduler = kind(**config)
    scheduler.set_timesteps(steps)
    return scheduler


def levels_of(scheduler: Any, **which: Any) -> Levels:
    levels = nature_of(scheduler, **which).levels
    assert levels is not None
    return levels


def every_scheduler() -> dict[str, Any]:
    """All schedulers that can be made without arguments."""
    found = {}
    for name in dir(diffusers):
        kind = getattr(diffusers, name, None)
        if not name.endswith("Scheduler") or not inspect.isclass(kind):
            continue
        try:
            scheduler: Any = kind()
            scheduler.set_timesteps(12)
        except Exception:  # it needs arguments, or a library that is not here
            continue
        found[name.removesuffix("Scheduler")] = scheduler
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_the_levels_of_deterministic_solvers_are_known(name: str) -> None:
    scheduler = made(name)
    nature = nature_of(scheduler)
    assert nature.levels is not None and not nature.adds_noise and not nature.why_unknown
    assert len(nature.levels) == len(scheduler.timesteps) == len(nature.levels.log_snr)
    assert all(math.isfinite(one) for one in nature.levels.log_snr)
    rising = nature.levels.log_snr[-1] > nature.levels.log_snr[0]
    assert rising != ("Inverse" in name)


@pytest.mark.parametrize("name", NOISY)
def test_schedulers_that_add_noise_are_found_out(name: str) -> None:
    """Many of them keep the amounts of picture and of noise, so that their levels are known all the same."""
    nature = nature_of(made(name))
    assert nature.adds_noise
    assert nature.levels is not None or f"{name}Scheduler" in nature.why_unknown


@pytest.mark.parametrize("name", UNKNOWN)
def test_of_others_it_is_said_why_their_levels_are_unknown(name: str) -> None:
    nature = nature_of(made(name))
    assert nature.levels is None and not nature.adds_noise
    assert f"the noise levels of {name}Scheduler are not known" in nature.why_unknown


@pytest.mark.parametrize("steps", [12, 20, 30, 50])
def test_the_levels_of_ddim_are_known_although_its_steps_are_rounded(steps: int) -> None:
    """With linspace a step goes a whole number of timesteps, and the next timestep lies a little further."""
    scheduler = made("DDIM", steps, timestep_spacing="linspace")
    levels, kept = levels_of(scheduler), scheduler.alphas_cumprod[scheduler.timesteps].double()
    assert levels.log_snr == pytest.approx((0.5 * (kept / (1 - kept)).log()).tolist(), rel=1e-4)


@pytest.mark.parametrize("first", [0, 3])
def test_inverted_sigmas_are_amounts_of_picture(first: int) -> None:
    """Before, from the second step on, picture and noise were taken for one another."""
    scheduler = made("FlowMatchEulerDiscrete", invert_sigmas=True)
    levels = levels_of(scheduler, first=first)
    assert [signal for signal, _ in levels.mixed] == pytest.approx(scheduler.sigmas[first:-1].tolist())
    assert levels.log_snr[-1] > levels.log_snr[0]


def test_a_scheduler_that_returns_no_numbers_is_not_said_to_add_noise() -> None:
    """UniPC divides by the last noise level, which is zero, if it predicts the noise."""
    nature = nature_of(made("UniPCMultistep", predict_x0=False))
    assert not nature.finite and not nature.adds_noise and nature.levels is None
    assert nature.why_unknown == "UniPCMultistepScheduler returns values that are not finite"


def test_a_scheduler_that_must_be_told_the_next_timestep_is_told() -> None:
    nature = nature_of(made("UnCLIP"))
    assert nature.adds_noise and nature.levels is not None


def test_noise_comes_with_an_option() -> None:
    plain, noisy = (
        nature_of(made("DPMSolverMultistep", algorithm_type=kind)) for kind in ("dpmsolver++", "sde-dpmsolver++")
    )
    assert plain.levels is not None and not plain.adds_noise
    assert noisy.levels == plain.levels and noisy.adds_noise


def test_every_scheduler_of_diffusers_has_a_nature_and_stays_as_it_is() -> None:
    """Neither does any draw from torch's random numbers."""
    schedulers = every_scheduler()
    assert len(schedulers) > 30 and set(KNOWN) & set(schedulers)
    for name, scheduler in schedulers.items():
        before, numbers = state_of(scheduler), torch.get_rng_state()
        nature = nature_of(scheduler)
        assert (nature.levels is None) == bool(nature.why_unknown), name
        assert torch.equal(torch.get_rng_state(), numbers), name
        assert same(state_of(scheduler), before), name


def state_of(scheduler: Any) -> dict[str, Any]:
    return copy.deepcopy(vars(scheduler))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if type(one).__module__ == "numpy":
        return bool((one == other).all())  # an array
    return True if callable(one) else bool(one == other)


EXACT: list[tuple[Any, dict[str, Any]]] = [
    (DDIMScheduler, {"clip_sample": False}),
    (DDIMScheduler, {"clip_sample": False, "prediction_type": "v_prediction"}),
    (DDIMScheduler, {"clip_sample": False, "prediction_type": "sample"}),
    (DDIMScheduler, {"clip_sample": False, "rescale_betas_zero_snr": True, "prediction_type": "v_prediction"}),
    (EulerDiscreteScheduler, {}),
    (EulerDiscreteScheduler, {"prediction_type": "v_prediction"}),
    (EulerDiscreteScheduler, {"use_karras_sigmas": True}),
    (FlowMatchEulerDiscreteScheduler, {"shift": 3.0}),
    (DPMSolverMultistepScheduler, {"algorithm_type": "dpmsolver++"}),
    (DPMSolverMultistepScheduler, {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}),
    (UniPCMultistepScheduler, {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 3.0}),
    (DEISMultistepScheduler, {}),
    (HeunDiscreteScheduler, {}),
    (PNDMScheduler, {"skip_prk_steps": True}),
    (EDMEulerScheduler, {}),
]


@pytest.mark.parametrize(("kind", "config"), EXACT)
def test_with_the_levels_a_picture_and_noise_go_in_and_the_picture_comes_out(kind: Any, config: dict[str, Any]) -> None:
    """The outputs that the levels give for one picture lead every solver to this picture."""
    scheduler = kind(**config)
    scheduler.set_timesteps(16)
    levels = levels_of(scheduler)
    generator = torch.Generator().manual_seed(0)
    clean, noise = torch.randn(2, 1, 1, 4, 4, generator=generator).mul(0.4)
    a, s = levels.mixed[0]
    sample = a * clean + s * noise
    for step, time in enumerate(scheduler.timesteps):
        p, q = levels.estimated[step]
        if hasattr(scheduler, "scale_model_input"):
            scheduler.scale_model_input(sample, time)
        sample = scheduler.step((clean - p * sample) / q, time, sample, return_dict=False)[0]
    # diffusers' solvers end at a small level of noise, not all at none
    torch.testing.assert_close(sample, clean, atol=0.1, rtol=0)


def test_the_levels_of_ddim_are_those_it_was_trained_with() -> None:
    scheduler = made("DDIM")
    kept = scheduler.alphas_cumprod[scheduler.timesteps].double()
    expected = 0.5 * (kept / (1 - kept)).log()
    assert levels_of(scheduler).log_snr == pytest.approx(expected.tolist(), rel=1e-4)


def test_a_loop_that_leaves_out_steps_has_the_levels_of_the_others() -> None:
    for kind, config in EXACT:
        if kind in (HeunDiscreteScheduler, PNDMScheduler):  # their steps come in pairs
            continue
        scheduler = kind(**config)
        scheduler.set_timesteps(12)
        whole = levels_of(scheduler)
        if hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(4)
        assert levels_of(scheduler, first=4) == whole.after(4)
        assert levels_of(scheduler, first=2, steps=5).mixed == whole.mixed[2:7]
        assert getattr(scheduler, "begin_index", 4) == 4


def test_levels_from_one_step_on() -> None:
    levels = levels_of(made("EulerDiscrete"))
    assert levels.after(0) == levels and len(levels.after(5)) == 7
    assert levels.after(5).log_snr == levels.log_snr[5:]


@pytest.mark.parametrize("which", [{"first": 12}, {"steps": 13}, {"first": 8, "steps": 5}])
def test_more_steps_than_there_are_have_no_levels(which: dict[str, int]) -> None:
    nature = nature_of(made("DDIM"), **which)
    assert nature.levels is None and "DDIMScheduler has fewer timesteps than the loop" in nature.why_unknown


def test_a_scheduler_that_was_given_no_timesteps_has_no_levels() -> None:
    assert "fewer timesteps" in nature_of(object()).why_unknown


def test_a_nature_is_remembered_by_what_decides_over_it() -> None:
    scheduler = made("EulerDiscrete")
    assert nature_of(scheduler) is nature_of(made("EulerDiscrete"))
    assert levels_of(made("EulerDiscrete", steps=13)) != levels_of(scheduler)
    assert levels_of(made("EulerDiscrete", use_karras_sigmas=True)) != levels_of(scheduler)
    scheduler.sigmas = scheduler.sigmas * 0.9  # as a user may who sets levels by hand
    assert levels_of(scheduler).mixed != levels_of(made("EulerDiscrete")).mixed


def test_a_scheduler_in_the_middle_of_its_run_can_be_asked() -> None:
    """Nothing of what it remembers comes into the answer, nor is lost."""
    for kind in (DPMSolverMultistepScheduler, UniPCMultistepScheduler, PNDMScheduler):
        running, fresh = kind(), kind()
        for one in (running, fresh):
            one.set_timesteps(11)  # whose nature no other test asked for
        sample, output = torch.randn(2, 1, 1, 2, 2, generator=torch.Generator().manual_seed(0))
        one = other = sample
        for step, time in enumerate(fresh.timesteps):
            if step == 5:
                assert nature_of(running).levels is not None
            one, other = (
                each.step(output, time, x, return_dict=False)[0] for each, x in ((running, one), (fresh, other))
            )
            assert torch.equal(one, other)


def test_a_scheduler_of_ones_own_that_adds_noise_is_found_out() -> None:
    class Jumpy(DDIMScheduler):
        def step(self, *args: Any, **kwargs: Any) -> Any:
            result = super().step(*args, **kwargs)
            return (result[0] + 0.1 * torch.randn(result[0].shape),)

    class Steady(EulerDiscreteScheduler):
        """Euler's method by another name."""

    jumpy, steady = Jumpy(clip_sample=False), Steady()
    for one in (jumpy, steady):
        one.set_timesteps(12)
    assert nature_of(jumpy).adds_noise and not nature_of(steady).adds_noise
    assert levels_of(steady) == levels_of(made("EulerDiscrete"))


def test_ancestral_and_plain_differ_in_nothing_but_their_noise() -> None:
    natures = []
    for kind in (EulerDiscreteScheduler, EulerAncestralDiscreteScheduler, DDIMScheduler, DDPMScheduler):
        scheduler = kind(**({"clip_sample": False} if "DD" in kind.__name__ else {}))
        scheduler.set_timesteps(12)
        natures.append(nature_of(scheduler))
    assert [one.adds_noise for one in natures] == [False, True, False, True]
    assert natures[0].levels == natures[1].levels and natures[2].levels == natures[3].levels
