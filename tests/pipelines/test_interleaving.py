"""What else may happen while an enabled pipeline draws: callbacks that draw themselves, loops of no step."""

from typing import Any

import pytest
import torch
from diffusers import (
    PNDMScheduler,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionPanoramaPipeline,
    StableDiffusionPipeline,
    StableDiffusionSAGPipeline,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import Tensor

import tenuto
from tenuto.errors import UsageError
from tests.helpers.pipelines import BETAS, QUIET, draw, picture, tiny

pytestmark = QUIET
BUDGET: dict[str, Any] = {"every": 4}


def parts_of(pipe: Any) -> dict[str, Any]:
    return {name: getattr(pipe, name) for name in pipe.config if not name.startswith("_") and hasattr(pipe, name)}


def twin(pipe: Any, kind: Any = StableDiffusionPipeline) -> Any:
    """A plain pipeline that shares the denoiser, with a scheduler of its own."""
    parts = {**parts_of(pipe), "scheduler": type(pipe.scheduler).from_config(pipe.scheduler.config)}
    parts.pop("requires_safety_checker", None)
    made = kind(**parts, requires_safety_checker=False)
    made.set_progress_bar_config(disable=True)
    return made


def test_a_callback_that_evaluates_the_denoiser_gets_the_denoiser() -> None:
    pipe = tiny("sd1")
    x, words = torch.randn(1, 4, 8, 8), torch.randn(1, 5, 16)
    with torch.no_grad():
        plain = pipe.unet(x, torch.tensor(5), encoder_hidden_states=words).sample
    seen: list[Tensor] = []

    def look(pipe: Any, step: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        seen.append(pipe.unet(x, torch.tensor(5), encoder_hidden_states=words).sample)
        return given

    with tenuto.accelerated(pipe, **BUDGET):
        expected = draw(pipe, "sd1")
        assert torch.equal(draw(pipe, "sd1", callback_on_step_end=look), expected)
    assert len(seen) == 12 and all(torch.equal(one, plain) for one in seen)


@pytest.mark.parametrize("inner", ["plain", "same"])
def test_a_callback_that_draws_disturbs_neither_picture(inner: str) -> None:
    pipe = tiny("sd1")
    other = twin(pipe)
    plain = draw(other, "sd1", seed=3)
    drawn: list[Tensor] = []

    def paint(_: Any, step: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        if step == 5 and not drawn:
            drawn.append(torch.empty(0))  # not again from within
            drawn[0] = draw(other if inner == "plain" else nested, "sd1", seed=3)
        return given

    with tenuto.accelerated(pipe, **BUDGET):
        nested = pipe
        expected, held = draw(pipe, "sd1"), draw(pipe, "sd1", seed=3)
        if inner == "same":
            # The pipeline shares its scheduler with itself: without Tenuto, too, only the inner picture is right.
            draw(pipe, "sd1", callback_on_step_end=paint)
            assert torch.equal(drawn[0], held)
        else:
            assert torch.equal(draw(pipe, "sd1", callback_on_step_end=paint), expected)
            assert torch.equal(drawn[0], plain)
        assert torch.equal(draw(pipe, "sd1"), expected)


def test_a_loop_that_evaluates_once_more_than_asked_is_counted_right() -> None:
    """PNDM, Stable Diffusion's own scheduler: the pipeline says nothing of the first of its steps."""
    pipe = tiny("sd1")
    pipe.scheduler = PNDMScheduler(**BETAS, skip_prk_steps=True)
    with tenuto.accelerated(pipe, **BUDGET):
        draw(pipe, "sd1")
        summary = tenuto.summary(pipe)
    assert summary.evaluations == summary.steps == 13
    assert [step.work == 1 for step in summary.per_step] == [i % 4 == 0 for i in range(13)]


def test_a_loop_that_never_says_that_it_goes_on_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tiny("sd1")
    with tenuto.accelerated(pipe, **BUDGET):
        loop = pipe._tenuto
        monkeypatch.setattr(loop, "_says_update", True)
        pipe.scheduler.set_timesteps(12)
        x, words = torch.randn(1, 4, 8, 8), torch.randn(1, 5, 16)
        with torch.no_grad(), pipe.progress_bar(total=12):
            for t in pipe.scheduler.timesteps:  # without bar.update()
                noise = pipe.unet(x, t, encoder_hidden_states=words).sample
                x = pipe.scheduler.step(noise, t, x).prev_sample
        assert x.isfinite().all() and tenuto.summary(pipe).computed < 6


def test_a_loop_of_no_step_is_left_to_the_pipeline() -> None:
    """Image-to-image with a strength that rounds to no step."""
    pipe = twin(tiny("sd1"), StableDiffusionImg2ImgPipeline)
    call: dict[str, Any] = {"image": picture(), "strength": 0.05, "steps": 12}

    def outcome() -> str:
        try:
            return str(draw(pipe, "sd1", **call).shape)
        except RuntimeError as error:  # of the autoencoder, which is given no latents
            return str(error)

    plain = outcome()
    with tenuto.accelerated(pipe):
        assert outcome() == plain
        assert list(pipe.progress_bar([])) == []


@pytest.mark.parametrize("kind", [StableDiffusionPanoramaPipeline, StableDiffusionSAGPipeline])
def test_pipelines_that_cannot_be_served_are_refused_at_once(kind: Any) -> None:
    pipe = tiny("sd1")
    parts = parts_of(pipe)
    parts.pop("requires_safety_checker", None)
    parts.pop("image_encoder", None)
    other = kind(**parts, requires_safety_checker=False)
    for budget in (0.25, 1.0):
        with pytest.raises(UsageError, match=f"A {kind.__name__} cannot be served: it"):
            tenuto.enable(other, budget)
    with tenuto.accelerated(pipe):  # nothing was left behind
        draw(pipe, "sd1")


class Interleaving(RuleBasedStateMachine):
    """Whatever happened before, an enabled pipeline draws what a fresh one draws, and a disabled one what a plain one
    does."""

    @initialize()
    def begin(self) -> None:
        self.pipe, self.enabled = tiny("sd1"), False
        self.fresh: dict[tuple[int, int, bool], Tensor] = {}

    def expected(self, steps: int, seed: int) -> Tensor:
        key = steps, seed, self.enabled
        if key not in self.fresh:
            pipe = tiny("sd1")
            if self.enabled:
                tenuto.enable(pipe, **BUDGET)
            self.fresh[key] = draw(pipe, "sd1", steps=steps, seed=seed)
        return self.fresh[key]

    @rule()
    def switch(self) -> None:
        (tenuto.disable if self.enabled else lambda pipe: tenuto.enable(pipe, **BUDGET))(self.pipe)
        self.enabled = not self.enabled

    @rule(steps=st.sampled_from([8, 12]), seed=st.integers(0, 1))
    def paint(self, steps: int, seed: int) -> None:
        assert torch.equal(draw(self.pipe, "sd1", steps=steps, seed=seed), self.expected(steps, seed))

    @rule(at=st.integers(0, 6))
    def interrupt(self, at: int) -> None:
        def fail(pipe: Any, step: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
            if step == at:
                raise KeyboardInterrupt
            return given

        with pytest.raises(KeyboardInterrupt):
            draw(self.pipe, "sd1", steps=8, callback_on_step_end=fail)

    @rule()
    def evaluate(self) -> None:
        with torch.no_grad():
            self.pipe.unet(torch.zeros(1, 4, 8, 8), torch.tensor(3), encoder_hidden_states=torch.zeros(1, 5, 16))

    @invariant()
    def nothing_is_open(self) -> None:
        if hasattr(self, "pipe") and self.enabled:
            assert not any(self.pipe._tenuto._loops.values())


Interleaving.TestCase.settings = settings(
    max_examples=6, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestInterleaving = Interleaving.TestCase


def test_what_a_callback_writes_in_place_stays_in_inference_mode() -> None:
    """Tensors of torch's inference mode do not count how often they are written to; corrections undid the writing."""

    def darken(pipe: Any, step: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        given["latents"][:, :, :4].mul_(0.9)
        return given

    def drawn(mode: Any) -> Tensor:
        pipe = tiny("sd1")
        with tenuto.accelerated(pipe, evaluations=10), mode():
            return draw(pipe, "sd1", steps=30, callback_on_step_end=darken).clone()

    torch.testing.assert_close(drawn(torch.inference_mode), drawn(torch.no_grad), rtol=1e-4, atol=1e-4)
