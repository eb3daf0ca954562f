"""Enabled pipelines and their schedulers: which are served, which run in full, and that none is left changed."""

import copy
import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DEISMultistepScheduler,
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    KDPM2AncestralDiscreteScheduler,
    LCMScheduler,
    PNDMScheduler,
    TCDScheduler,
    UniPCMultistepScheduler,
)
from torch import Tensor

import tenuto
from tests.helpers.pipelines import BETAS, EVERY_FOURTH, QUIET, counted, draw, tiny

pytestmark = QUIET


@pytest.fixture
def pipe() -> DiffusionPipeline:
    return tiny("sd1")


def test_a_second_order_solver_is_counted_by_evaluations(pipe: DiffusionPipeline) -> None:
    pipe.scheduler = HeunDiscreteScheduler(**BETAS)
    full = draw(pipe, "sd1", steps=9)
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "sd1", steps=9), full)
        assert tenuto.summary(pipe).evaluations == 17
    with tenuto.accelerated(pipe, every=4):
        draw(pipe, "sd1", steps=9)
        summary = tenuto.summary(pipe)
    assert [step.work for step in summary.per_step] == [float(i % 4 == 0) for i in range(17)]


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (DDIMScheduler, {"clip_sample": False}),
        (EulerDiscreteScheduler, {}),
        (DPMSolverMultistepScheduler, {}),
        (UniPCMultistepScheduler, {}),
        (DEISMultistepScheduler, {}),
        (PNDMScheduler, {"skip_prk_steps": True}),
    ],
)
def test_refreshes_correct_the_steps_before_them_whatever_the_scheduler_remembers(
    pipe: DiffusionPipeline, kind: Any, config: dict[str, Any]
) -> None:
    pipe.scheduler = kind(**BETAS, **config)
    full = draw(pipe, "sd1", steps=30)
    drawn = []
    for correction in (True, False):
        with tenuto.accelerated(pipe, evaluations=15, correction=correction):
            drawn.append(draw(pipe, "sd1", steps=30))
            assert tenuto.summary(pipe).corrected == correction
    assert not torch.equal(*drawn)
    near, far = ((one - full).abs().mean() for one in drawn)
    assert near < 1.2 * far  # random weights are no smooth network: correction must not hurt


@pytest.mark.parametrize("kind", [DPMSolverMultistepScheduler, UniPCMultistepScheduler, PNDMScheduler])
def test_a_scheduler_that_remembers_outputs_forgets_them_between_generations(
    pipe: DiffusionPipeline, kind: Any
) -> None:
    pipe.scheduler = kind(**BETAS, **({"skip_prk_steps": True} if kind is PNDMScheduler else {}))
    full = draw(pipe, "sd1")
    with tenuto.accelerated(pipe, evaluations=9):
        first = draw(pipe, "sd1")
        draw(pipe, "sd1", seed=1)
        assert torch.equal(draw(pipe, "sd1"), first)
    assert torch.equal(draw(pipe, "sd1"), full)


class Unknown(DDIMScheduler):
    """A scheduler that steps in its own way."""

    def step(self, model_output: torch.Tensor, timestep: Any, sample: torch.Tensor, **kwargs: Any) -> Any:
        (after, *others) = super().step(model_output, timestep, sample, **{**kwargs, "return_dict": False})
        return (0.9 * after, *others)


def test_a_scheduler_whose_noise_levels_are_unknown_is_served_and_it_is_said(pipe: DiffusionPipeline) -> None:
    pipe.scheduler = Unknown(**BETAS, clip_sample=False)
    full = draw(pipe, "sd1", steps=24)
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "sd1", steps=24), full)
    with tenuto.accelerated(pipe, evaluations=12):
        with pytest.warns(
            UserWarning, match=r"The noise levels of Unknown are not known, so .* See with tenuto.compare"
        ):
            assert draw(pipe, "sd1", steps=24).isfinite().all()
        summary = tenuto.summary(pipe)
    assert summary.computed == 12 and not summary.corrected
    assert "the noise levels of Unknown are not known" in summary.uncorrected_because
    assert f"not corrected: {summary.uncorrected_because}" in str(summary)


class Around:
    """As xDiT wraps a scheduler: what the wrapper lacks is the scheduler's, and a copy of the wrapper never ends."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "module" and hasattr(self.module, name):
            setattr(self.module, name, value)
        else:
            super().__setattr__(name, value)

    def step(self, model_output: Any, timestep: Any, sample: Any, **named: Any) -> Any:
        return self.module.step(model_output, timestep, sample, **named)


@pytest.mark.parametrize("kind", [DDIMScheduler, UniPCMultistepScheduler])
def test_a_scheduler_inside_another_object_is_known_and_corrected(kind: Any) -> None:
    plain, around = tiny("sd1"), tiny("sd1")
    plain.scheduler = kind(**BETAS)
    wish: dict[str, Any] = {"evaluations": 12}
    full = draw(plain, "sd1", steps=24)
    with tenuto.accelerated(plain, **wish):
        expected = draw(plain, "sd1", steps=24)
    around.scheduler = Around(kind(**BETAS))
    with tenuto.accelerated(around, **wish):
        assert torch.equal(draw(around, "sd1", steps=24), expected)
        summary = tenuto.summary(around)
        assert summary.computed == 12 and summary.corrected
    assert torch.equal(draw(around, "sd1", steps=24), full)


class Locked(DDIMScheduler):
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("it holds a lock")


def test_a_scheduler_that_cannot_be_copied_is_named_before_anything_is_held(pipe: DiffusionPipeline) -> None:
    pipe.scheduler = Locked(**BETAS, clip_sample=False)
    with tenuto.accelerated(pipe, evaluations=12):
        with pytest.warns(UserWarning, match=r"Locked cannot be copied \(it holds a lock\), so predictions are less"):
            draw(pipe, "sd1", steps=24)
        assert tenuto.summary(pipe).computed == 12
    with tenuto.accelerated(pipe, quality=40), pytest.warns(UserWarning, match=r"cannot be copied .* is gained"):
        draw(pipe, "sd1", steps=24)


@pytest.mark.parametrize("asked", [{"budget": 0.3}, {"quality": 40}])
def test_a_scheduler_that_returns_no_numbers_is_computed_in_full_and_named(
    pipe: DiffusionPipeline, asked: dict[str, Any]
) -> None:
    pipe.scheduler = UniPCMultistepScheduler(**BETAS, predict_x0=False)
    tenuto.enable(pipe, **asked)
    with pytest.warns(UserWarning, match="returns values that are not finite.*Check its settings"):
        draw(pipe, "sd1", steps=20)
    assert tenuto.summary(pipe).in_full_because == "UniPCMultistepScheduler returns values that are not finite"


def test_nobody_is_told_to_ask_for_the_evaluations_that_were_asked_for(pipe: DiffusionPipeline) -> None:
    pipe.scheduler = LCMScheduler(**BETAS)
    tenuto.enable(pipe, evaluations=6)
    with pytest.warns(UserWarning, match="random noise") as told:
        draw(pipe, "sd1", steps=10)
    said = next(str(one.message) for one in told if "random noise" in str(one.message))
    assert "in 10 steps the clean picture changes too much" in said and "how many evaluations" not in said


@pytest.mark.parametrize(
    ("kind", "config", "call"),
    [
        (DDIMScheduler, {"clip_sample": False}, {"eta": 1.0}),
        (DDPMScheduler, {}, {}),
        (EulerAncestralDiscreteScheduler, {}, {}),
        (LCMScheduler, {}, {}),
        (TCDScheduler, {}, {}),
        (KDPM2AncestralDiscreteScheduler, {}, {}),
        (DPMSolverMultistepScheduler, {"algorithm_type": "sde-dpmsolver++"}, {}),
    ],
)
def test_a_scheduler_that_adds_noise_is_computed_in_full_and_says_so(
    pipe: DiffusionPipeline, kind: Any, config: dict[str, Any], call: dict[str, Any]
) -> None:
    """Before, such pictures were ruined without a word: outputs that jump with the noise cannot be predicted."""
    pipe.scheduler = kind(**BETAS, **config)
    full = draw(pipe, "sd1", **call)
    tenuto.enable(pipe)
    with pytest.warns(UserWarning, match="adds random noise at every step"):
        assert torch.equal(draw(pipe, "sd1", **call), full)
    summary = tenuto.summary(pipe)
    assert summary.work == 1 and f"{kind.__name__} adds random noise" in summary.in_full_because
    assert summary.in_full_because in str(summary)
    with warnings.catch_warnings():  # which is said once
        warnings.simplefilter("error", UserWarning)
        assert torch.equal(draw(pipe, "sd1", **call), full)


@pytest.mark.parametrize(
    ("kind", "config", "call"),
    [
        (DDIMScheduler, {"clip_sample": False}, {"eta": 1.0}),
        (EulerAncestralDiscreteScheduler, {}, {}),
        (DPMSolverMultistepScheduler, {"algorithm_type": "sde-dpmsolver++"}, {}),
    ],
)
def test_a_number_of_evaluations_is_served_where_noise_is_added(
    pipe: DiffusionPipeline, kind: Any, config: dict[str, Any], call: dict[str, Any]
) -> None:
    """How near it comes is measured on trained networks."""
    pipe.scheduler = kind(**BETAS, **config)
    tenuto.enable(pipe, evaluations=20)
    with pytest.warns(UserWarning, match="it cannot be corrected"):
        got = draw(pipe, "sd1", steps=30, **call)
    summary = tenuto.summary(pipe)
    assert summary.computed == 20 and not summary.corrected and "adds random noise" in summary.uncorrected_because
    assert got.isfinite().all() and torch.equal(draw(pipe, "sd1", steps=30, **call), got)


@pytest.mark.parametrize("kind", [LCMScheduler, EulerAncestralDiscreteScheduler])
def test_nor_are_single_units_held_where_noise_is_added(pipe: DiffusionPipeline, kind: Any) -> None:
    pipe.scheduler = kind(**BETAS)
    full = draw(pipe, "sd1")
    with (
        tenuto.accelerated(pipe, every=4, keep="branch"),
        counted(pipe) as counts,
        pytest.warns(UserWarning, match="adds random noise at every step"),
    ):
        assert torch.equal(draw(pipe, "sd1"), full)
    assert set(counts.values()) == {12}


def test_few_steps_that_are_computed_in_full_get_no_advice_on_held_ones(pipe: DiffusionPipeline) -> None:
    pipe.scheduler = LCMScheduler(**BETAS)
    with tenuto.accelerated(pipe), pytest.warns(UserWarning, match="random noise") as said:
        draw(pipe, "sd1", steps=10)
    assert [str(one.message).split(" at every step")[0] for one in said] == ["LCMScheduler adds random noise"]


@pytest.mark.parametrize(("steps", "helps"), [(10, False), (30, True)])
def test_a_number_of_evaluations_is_advised_only_where_it_would_help(pipe: DiffusionPipeline, steps: int, helps: bool):
    pipe.scheduler = LCMScheduler(**BETAS)
    with tenuto.accelerated(pipe), pytest.warns(UserWarning, match="random noise") as said:
        draw(pipe, "sd1", steps=steps)
    assert ("say how many evaluations" in str(said[0].message)) == helps
    with tenuto.accelerated(pipe, evaluations=8):
        with pytest.warns(UserWarning, match="random noise"):
            draw(pipe, "sd1", steps=steps)
        assert tenuto.summary(pipe).computed == (8 if helps else steps)


def test_after_a_scheduler_that_adds_noise_another_one_is_served(pipe: DiffusionPipeline) -> None:
    plain = pipe.scheduler
    with tenuto.accelerated(pipe, evaluations=3):
        expected = draw(pipe, "sd1")
        pipe.scheduler = LCMScheduler(**BETAS)
        with pytest.warns(UserWarning, match="adds random noise"):
            draw(pipe, "sd1")
        pipe.scheduler = plain
        assert torch.equal(draw(pipe, "sd1"), expected)
        assert tenuto.summary(pipe).computed == 3 and not tenuto.summary(pipe).in_full_because


class Named(DDIMScheduler):
    """A scheduler that takes nothing but keywords."""

    def set_timesteps(self, *, num_inference_steps: int, device: Any = None) -> None:
        super().set_timesteps(num_inference_steps, device)

    def step(self, *, model_output: Tensor, timestep: Any, sample: Tensor, **options: Any) -> Any:
        return super().step(model_output, timestep, sample, **options)


def test_a_scheduler_called_by_keywords_is_followed(pipe: DiffusionPipeline) -> None:
    """In a loop of one's own, the pipeline's bar says when it begins."""
    tenuto.enable(pipe, every=4)
    draw(pipe, "sd1", steps=20)
    pipe.scheduler = Named(**BETAS, clip_sample=False)
    x, words = torch.randn(1, 4, 8, 8), torch.randn(1, 5, 16)
    pipe.scheduler.set_timesteps(num_inference_steps=12)
    with torch.no_grad(), pipe.progress_bar(total=12) as bar:
        for t in pipe.scheduler.timesteps:
            noise = pipe.unet(x, t, encoder_hidden_states=words).sample
            x = pipe.scheduler.step(model_output=noise, timestep=t, sample=x).prev_sample
            bar.update()
    assert [step.work == 1 for step in tenuto.summary(pipe).per_step] == EVERY_FOURTH
    assert tenuto.summary(pipe).steps == 12


def test_a_scheduler_exchanged_meanwhile_is_followed(pipe: DiffusionPipeline) -> None:
    first = pipe.scheduler
    tenuto.enable(pipe, every=4)
    draw(pipe, "sd1")
    pipe.scheduler = HeunDiscreteScheduler(**BETAS)
    draw(pipe, "sd1", steps=9)
    assert "step" not in vars(first)  # which is no longer ours
    assert tenuto.summary(pipe).evaluations == 17 and tenuto.summary(pipe).computed == 5
    tenuto.disable(pipe)
    assert "step" not in vars(first) and "step" not in vars(pipe.scheduler)


def test_schedulers_exchanged_between_generations_are_let_go(pipe: DiffusionPipeline) -> None:
    """A server that makes a scheduler for each request must not keep them all."""
    seen = []
    with tenuto.accelerated(pipe, evaluations=3):
        for _ in range(5):
            pipe.scheduler = DDIMScheduler(**BETAS, clip_sample=False)
            seen.append(weakref.ref(pipe.scheduler))
            draw(pipe, "sd1")
        assert len(pipe._tenuto._watched) == 1
        gc.collect()
        assert [one() is not None for one in seen] == [False] * 4 + [True]


def test_a_copy_of_a_scheduler_is_free_but_for_the_loop_that_is_running(pipe: DiffusionPipeline) -> None:
    """LTX-2 copies its scheduler for the sound, and steps both: the copy belongs to the loop."""
    tenuto.enable(pipe, evaluations=3)
    draw(pipe, "sd1")
    twin = copy.deepcopy(pipe.scheduler)
    twin.set_timesteps(12)
    plain = DDIMScheduler(**BETAS, clip_sample=False)
    plain.set_timesteps(12)
    sample, output = torch.randn(2, 1, 4, 8, 8)
    for time in plain.timesteps:  # outside of any generation
        assert torch.equal(*(one.step(output, time, sample, return_dict=False)[0] for one in (twin, plain)))
    tenuto.disable(pipe)
    again = copy.deepcopy(pipe.scheduler)
    assert "step" not in vars(again) and "step" not in vars(pipe.scheduler)


def test_a_second_scheduler_copied_for_the_loop_is_held_like_the_first(pipe: DiffusionPipeline) -> None:
    """One evaluation gives two outputs, each of which has its own scheduler and sample, as in LTX-2."""
    words, steps = torch.randn(1, 5, 16), 24

    def loop() -> list[Tensor]:
        x, y = (torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
        pipe.scheduler.set_timesteps(steps)
        second = copy.deepcopy(pipe.scheduler)
        with torch.no_grad(), pipe.progress_bar(total=steps) as bar:
            for t in pipe.scheduler.timesteps:
                found = pipe.unet(torch.cat([x, y]), t, encoder_hidden_states=words.expand(2, -1, -1)).sample
                one, other = found.chunk(2)
                x = pipe.scheduler.step(one, t, x, return_dict=False)[0]
                y = second.step(other, t, y, return_dict=False)[0]
                bar.update()
        return [x, y]

    full = loop()
    with tenuto.accelerated(pipe, 1.0):
        assert all(map(torch.equal, loop(), full))
    with tenuto.accelerated(pipe, evaluations=12), counted(pipe) as counts:
        held = loop()
        assert set(counts.values()) == {12} and tenuto.summary(pipe).computed == 12
        assert len(pipe._tenuto.last.streams) == 2
    for one, other in zip(held, full, strict=True):
        scale = float(other.abs().mean())
        assert 0 < float((one - other).abs().mean()) < 0.2 * scale
