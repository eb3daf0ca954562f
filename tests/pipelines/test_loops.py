"""Whatever an enabled pipeline's loop does: other sizes, pictures from pictures, guidance that comes and goes."""

import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    EDMEulerScheduler,
    LMSDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
)

import tenuto
from tests.helpers.pipelines import (
    BETAS,
    EVERY_FOURTH,
    QUIET,
    computed_steps,
    counted,
    draw,
    other,
    picture,
    switched_off,
    tiny,
)

pytestmark = QUIET


@pytest.fixture
def pipe() -> DiffusionPipeline:
    return tiny("sd1")


def test_other_steps_batches_sizes_and_guidance_follow_one_another(pipe: DiffusionPipeline) -> None:
    calls: list[dict[str, Any]] = [{}, {"steps": 20}, {"batch": 2}, {"height": 16, "width": 8}, {"guidance_scale": 0.0}]
    alone = []
    for call in calls:
        with tenuto.accelerated(pipe, 0.3):
            alone.append(draw(pipe, "sd1", **call))
    with tenuto.accelerated(pipe, 0.3):
        for call, expected in zip(calls + calls, alone + alone, strict=True):
            assert torch.equal(draw(pipe, "sd1", **call), expected), call
        assert {steps for steps, *_ in pipe._tenuto.denoisers[0]._schedules} == {12, 20}


def test_a_budget_leaves_at_least_six_evaluations(pipe: DiffusionPipeline) -> None:
    """With fewer, pictures fall apart. Whoever wants fewer asks for a number."""
    for steps, budget, count in ((4, 0.25, 4), (6, 0.1, 6), (12, 0.25, 6), (20, 0.25, 6), (32, 0.25, 8), (40, 0.5, 20)):
        with tenuto.accelerated(pipe, budget), counted(pipe) as counts:
            draw(pipe, "sd1", steps=steps)
        assert set(counts.values()) == {count}, (steps, budget)
    for count in (1, 2, 3, 5, 12, 20):
        with tenuto.accelerated(pipe, evaluations=count), counted(pipe) as counts:
            draw(pipe, "sd1", steps=12)
            assert computed_steps(pipe)[0] == 0 and (count <= 3 or computed_steps(pipe)[-1] == 11)
        assert set(counts.values()) == {min(12, count)}


def test_few_steps_are_computed_in_full(pipe: DiffusionPipeline) -> None:
    full = draw(pipe, "sd1", steps=4)
    with tenuto.accelerated(pipe):
        assert torch.equal(draw(pipe, "sd1", steps=4), full)
        assert tenuto.summary(pipe).work == 1


IMAGES: list[tuple[Any, str]] = [
    (StableDiffusionImg2ImgPipeline, "sd1"),
    (StableDiffusionInpaintPipeline, "sd1"),
    (StableDiffusionXLImg2ImgPipeline, "sdxl"),
]
LEFT_HALF = torch.zeros(1, 1, 8, 8).index_fill(3, torch.arange(4), 1.0)  # which an inpainting pipeline paints


def from_picture(kind: Any, steps: int = 24) -> dict[str, Any]:
    call: dict[str, Any] = {"image": picture(), "strength": 0.5, "steps": steps}
    if kind is StableDiffusionInpaintPipeline:
        call |= {"mask_image": LEFT_HALF, "height": 8, "width": 8}
    return call


@pytest.mark.parametrize(("kind", "family"), IMAGES)
def test_pictures_made_from_pictures_take_fewer_steps(kind: Any, family: str) -> None:
    pipe, call = other(kind, family), from_picture(kind)
    full = draw(pipe, family, **call)
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, family, **call), full)
    with tenuto.accelerated(pipe, every=4):
        draw(pipe, family, **call)
        assert [step.work == 1 for step in tenuto.summary(pipe).per_step] == EVERY_FOURTH
    with tenuto.accelerated(pipe, evaluations=5), counted(pipe) as counts:
        draw(pipe, family, **call)
        assert set(counts.values()) == {5} and {0, 11} <= set(computed_steps(pipe))
    assert torch.equal(draw(pipe, family, **call), full)


@pytest.mark.parametrize(("kind", "family"), IMAGES)
def test_the_levels_of_a_loop_that_begins_in_the_middle_are_those_of_its_steps(kind: Any, family: str) -> None:
    """Otherwise what is predicted would be turned back into outputs of other steps."""
    pipe, call = other(kind, family), from_picture(kind, steps=48)
    full = draw(pipe, family, **call)
    with tenuto.accelerated(pipe, evaluations=12):
        held = draw(pipe, family, **call)
        summary, levels = tenuto.summary(pipe), pipe._tenuto.last.nature.levels
    assert (summary.steps, summary.computed) == (24, 12) and summary.corrected
    assert len(levels) == 24
    assert float((held - full).abs().max()) < 0.1


@pytest.mark.parametrize("kind", [LMSDiscreteScheduler, PNDMScheduler])
def test_schedulers_that_miss_their_levels_from_the_middle_on_are_held_uncorrected_and_it_is_said(kind: Any) -> None:
    pipe = other(StableDiffusionImg2ImgPipeline)
    pipe.scheduler = kind(**BETAS)
    call: dict[str, Any] = {"image": picture(), "strength": 0.5, "steps": 26}
    full = draw(pipe, "sd1", **call)
    with tenuto.accelerated(pipe, 0.25):
        held, summary = draw(pipe, "sd1", **call), tenuto.summary(pipe)
    assert summary.computed == 6 < summary.steps and "levels" in summary.uncorrected_because
    assert 0 < float((held - full).norm() / full.norm()) < 0.05


def test_what_is_not_painted_stays_as_it_is() -> None:
    """Inpainting overwrites the rest of the sample after every step, and a correction must not undo this."""
    pipe, call = other(StableDiffusionInpaintPipeline), from_picture(StableDiffusionInpaintPipeline, steps=48)
    call["output_type"] = "latent"
    full = draw(pipe, "sd1", **call)
    with tenuto.accelerated(pipe, evaluations=12):
        held = draw(pipe, "sd1", **call)
        assert tenuto.summary(pipe).corrected
    assert torch.equal(held[..., 4:], full[..., 4:])
    assert not torch.equal(held[..., :4], full[..., :4])
    assert float((held - full).abs().max()) < 0.2 * float(full.abs().max())


def test_a_batch_that_changes_on_the_way_begins_anew(pipe: DiffusionPipeline) -> None:
    for at, expected in ((3, [0, 4, 8]), (5, [0, 4, 6, 10])):  # step 4 is computed anyway, and step 6 is not
        call = switched_off(at)
        full = draw(pipe, "sd1", **call)
        with tenuto.accelerated(pipe, 1.0):
            assert torch.equal(draw(pipe, "sd1", **call), full)
        for keep in ("output", "branch"):
            with tenuto.accelerated(pipe, every=4, keep=keep):
                assert draw(pipe, "sd1", **call).isfinite().all()
                assert computed_steps(pipe) == expected, (at, keep)


def test_a_schedule_goes_on_with_its_rest_where_the_batch_changes(pipe: DiffusionPipeline) -> None:
    schedule = tenuto.schedule(pipe, steps=12, every=4)
    with tenuto.accelerated(pipe, schedule=schedule):
        draw(pipe, "sd1", **switched_off(3))
        assert computed_steps(pipe) == [0, 4, 8]
        draw(pipe, "sd1", **switched_off(5))
        assert {0, 4, 6, 8} <= set(computed_steps(pipe))


def test_guidance_that_skips_layers_for_some_steps_is_held_with_the_rest() -> None:
    pipe = tiny("sd3")
    call: dict[str, Any] = {"skip_guidance_layers": [1], "skip_layer_guidance_stop": 0.5, "steps": 16}
    full = draw(pipe, "sd3", **call)
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "sd3", **call), full)
        assert tenuto.summary(pipe).evaluations == 16 + 7
    with tenuto.accelerated(pipe, every=4):
        assert torch.isfinite(draw(pipe, "sd3", **call)).all()
        assert tenuto.summary(pipe).computed == 4 + 1  # of the second calls, which end at step 7, that of step 4
        assert not tenuto.summary(pipe).in_full_because


def test_between_generations_the_denoiser_is_as_ever(pipe: DiffusionPipeline) -> None:
    x, words = torch.randn(1, 4, 8, 8), torch.randn(1, 5, 16)
    with torch.no_grad():
        plain = pipe.unet(x, 7, encoder_hidden_states=words).sample
        with tenuto.accelerated(pipe), counted(pipe) as counts:
            draw(pipe, "sd1")
            before = Counter(counts)
            assert all(torch.equal(pipe.unet(x, 7, encoder_hidden_states=words).sample, plain) for _ in range(3))
            assert set((counts - before).values()) == {3}


def test_more_evaluations_than_steps_are_all_steps_and_it_is_said(pipe: DiffusionPipeline) -> None:
    full = draw(pipe, "sd1", steps=24)
    with (
        tenuto.accelerated(pipe, evaluations=30),
        pytest.warns(UserWarning, match="30 evaluations were asked for"),
    ):
        assert torch.equal(draw(pipe, "sd1", steps=24), full)
    assert_said(pipe, 8, 12, warned=True)
    assert_said(pipe, 8, 8, warned=False)  # all of them are what was asked for


def assert_said(pipe: DiffusionPipeline, steps: int, evaluations: int, warned: bool) -> None:
    with tenuto.accelerated(pipe, evaluations=evaluations), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        draw(pipe, "sd1", steps=steps)
        why = tenuto.summary(pipe).in_full_because
    assert why == f"{evaluations} evaluations of {steps} steps were asked for"
    assert any("nothing is gained. Ask for fewer" in str(one.message) for one in said) == warned
    assert not any("so few steps" in str(one.message) for one in said)


def test_a_network_exchanged_in_a_callback_is_named(pipe: DiffusionPipeline) -> None:
    first, second = pipe.unet, tiny("sd1").unet

    def exchange(pipe: Any, step: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        pipe.unet = second if step >= 4 else first
        return given

    tenuto.enable(pipe, every=4)
    with pytest.warns(UserWarning, match=r"The unet was exchanged in the middle of the loop\. All remaining"):
        draw(pipe, "sd1", callback_on_step_end=exchange)
    summary = tenuto.summary(pipe)
    assert (summary.computed, summary.evaluations, summary.taken) == (2, 5, 12)


class Twice(StableDiffusionPipeline):
    """Cosmos 1's loop: it steps to learn the clean pictures, undoes the step, and steps with the guided one."""

    @torch.no_grad()
    def __call__(self, embeds: torch.Tensor, steps: int) -> torch.Tensor:
        x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0)) * self.scheduler.init_noise_sigma
        self.scheduler.set_timesteps(steps)
        with self.progress_bar(total=steps) as bar:
            for t in self.scheduler.timesteps:
                scaled = self.scheduler.scale_model_input(x, t)
                both = torch.cat([self.unet(scaled, t, encoder_hidden_states=one).sample for one in embeds[:, None]])
                clean = self.scheduler.step(both, t, torch.cat([x, x]), return_dict=False)[1]
                self.scheduler._step_index -= 1
                plain, asked = clean.chunk(2)
                guided = asked + 2 * (asked - plain)
                x = self.scheduler.step(guided, t, x, return_dict=False, pred_original_sample=guided)[0]
                bar.update()
        return x


def test_a_step_that_the_loop_undoes_is_none_of_its_steps() -> None:
    pipe = other(Twice, scheduler=EDMEulerScheduler())
    embeds = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
    full = pipe(embeds, 24)
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(pipe(embeds, 24), full)
    distances = []
    for correction in (True, False):
        with tenuto.accelerated(pipe, evaluations=12, correction=correction):
            distances.append(float((pipe(embeds, 24) - full).norm() / full.norm()))
            summary = tenuto.summary(pipe)
            assert (summary.computed, summary.evaluations, summary.corrected) == (24, 48, correction)
            assert not summary.in_full_because
    assert distances[0] < 0.1 and distances[0] < 1.2 * distances[1]
    assert torch.equal(pipe(embeds, 24), full)


class Uncounted(StableDiffusionPipeline):
    """The loop of image variations and T2I adapters, which announces as many steps as were asked for."""

    more = 0

    @torch.no_grad()
    def __call__(self, embeds: torch.Tensor, steps: int) -> torch.Tensor:
        x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        self.scheduler.set_timesteps(steps)
        with self.progress_bar(total=steps - self.more) as bar:
            for i, t in enumerate(self.scheduler.timesteps):
                x = self.scheduler.step(self.unet(x, t, encoder_hidden_states=embeds).sample, t, x).prev_sample
                if i % 2:
                    bar.update()
        return x


@pytest.mark.parametrize("steps", [12, 16, 30])
def test_the_evaluation_that_pndm_adds_is_known_from_the_scheduler_if_the_loop_does_not_tell(steps: int) -> None:
    pipe = other(Uncounted, scheduler=PNDMScheduler(**BETAS, skip_prk_steps=True))
    embeds = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(1))
    full = pipe(embeds, steps)
    for wish in ({"budget": 0.25}, {"evaluations": 7}, {"evaluations": 10}):
        with tenuto.accelerated(pipe, **wish), counted(pipe) as counts:
            assert pipe(embeds, steps).isfinite().all()
            summary = tenuto.summary(pipe)
            assert (summary.steps, summary.taken, summary.corrected) == (steps + 1, steps + 1, True)
            assert set(counts.values()) == {summary.computed}
    assert torch.equal(pipe(embeds, steps), full)


def test_a_loop_that_takes_more_steps_than_it_announced_evaluates_them() -> None:
    pipe: Any = other(Uncounted)
    pipe.more = 3
    embeds = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(1))
    full = pipe(embeds, 20)
    for wish in ({"budget": 1.0}, {"budget": 0.25}, {"evaluations": 10}):
        with tenuto.accelerated(pipe, **wish), counted(pipe) as counts:
            held = pipe(embeds, 20)
            assert set(counts.values()) == {tenuto.summary(pipe).computed + 3}
        assert held.isfinite().all() and torch.equal(held, full) == (wish == {"budget": 1.0})


class Growing(StableDiffusionPipeline):
    """A loop that goes on with larger samples, as pyramids of pictures do."""

    @torch.no_grad()
    def __call__(self, embeds: torch.Tensor, steps: int, grows_at: int) -> torch.Tensor:
        x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        self.scheduler.set_timesteps(steps)
        with self.progress_bar(total=steps) as bar:
            for i, t in enumerate(self.scheduler.timesteps):
                if i == grows_at:
                    x = x.repeat_interleave(2, dim=2)
                x = self.scheduler.step(self.unet(x, t, encoder_hidden_states=embeds).sample, t, x).prev_sample
                bar.update()
        return x


@pytest.mark.parametrize("grows_at", range(1, 20, 2))
def test_samples_that_grow_in_the_middle_of_the_loop_begin_anew(grows_at: int) -> None:
    pipe: Any = other(Growing)
    embeds = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(1))
    full = pipe(embeds, 20, grows_at)
    for wish in ({"budget": 1.0}, {"budget": 0.25}, {"evaluations": 10}, {"quality": 60}):
        with tenuto.accelerated(pipe, **wish), counted(pipe) as counts:
            held = pipe(embeds, 20, grows_at)
            assert set(counts.values()) == {tenuto.summary(pipe).computed}
        distance = float((held - full).norm() / full.norm())
        assert distance < (1e-9 if wish == {"budget": 1.0} else 0.2)
