"""The summary of a generation: for reading and for programs."""

import weakref
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline

import tenuto
from tests.helpers.pipelines import QUIET, draw, switched_off, tiny

pytestmark = QUIET


@pytest.fixture
def pipe() -> DiffusionPipeline:
    return tiny("sd1")


def test_a_summary_is_for_reading_and_for_programs(pipe: DiffusionPipeline) -> None:
    tenuto.enable(pipe, every=4)
    assert "nothing was generated yet" in str(tenuto.summary(pipe))
    draw(pipe, "sd1")
    summary = tenuto.summary(pipe)
    assert (summary.steps, summary.evaluations, summary.computed) == (12, 12, 3)
    assert summary.work == summary.flop_work == 0.25
    sample = 4 * 8 * 8 * 4  # bytes
    assert sample <= summary.cache_bytes <= 5 * sample  # once a step, after guidance: not of two samples
    assert summary.seconds == sum(step.seconds for step in summary.per_step) > 0
    assert summary.computed_steps == 3 and summary.seconds_saved > 0
    held = sorted(step.seconds for step in summary.per_step if step.work == 0)
    assert held[len(held) // 2] < min(step.seconds for step in summary.per_step if step.work == 1)
    assert "#...#...#..." in str(summary) and "3 of 12 evaluations" in str(summary)
    record = summary.to_dict()
    assert record["per_denoiser"]["unet"] == {"computed": 3, "asked": 12} and len(record["per_step"]) == 12
    assert (summary.keep, summary.scheduler) == ("output", "DDIMScheduler")
    assert f"the output, predicted as {summary.predict}" in str(summary)


def test_samples_of_held_steps_are_freed(pipe: DiffusionPipeline) -> None:
    tenuto.enable(pipe, every=6)
    samples: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def look(pipe: Any, step: int, t: Any, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        samples.append(weakref.ref(given["latents"]))
        alive.append(sum(one() is not None for one in samples))
        return {}

    draw(pipe, "sd1", callback_on_step_end=look)
    assert alive[5] == alive[2], "what is kept must not grow with the number of held steps"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "a budget of 0.25"),
        ({"budget": 0.5}, "a budget of 0.5"),
        ({"evaluations": 7}, "7 evaluations"),
        ({"speedup": 2}, "2 times as fast"),
        ({"every": 4}, "4"),
        ({"policy": "lifetimes"}, "lifetimes"),
    ],
)
def test_a_summary_says_what_was_asked(pipe: DiffusionPipeline, options: dict[str, Any], words: str) -> None:
    with tenuto.accelerated(pipe, **options):
        draw(pipe, "sd1")
        summary = tenuto.summary(pipe)
    assert words in summary.asked and f"asked     {summary.asked}" in str(summary)
    assert options == {} or options.keys() == {"budget"} or "budget" not in summary.asked


def test_a_summary_says_whether_outputs_were_corrected_and_why_not(pipe: DiffusionPipeline) -> None:
    with tenuto.accelerated(pipe, evaluations=16):
        draw(pipe, "sd1", steps=32)
        summary = tenuto.summary(pipe)
    assert summary.corrected and not summary.uncorrected_because and ", corrected;" in str(summary)
    with tenuto.accelerated(pipe, evaluations=16, correction=False):
        draw(pipe, "sd1", steps=32)
        summary = tenuto.summary(pipe)
    assert not summary.corrected and not summary.uncorrected_because and ", not corrected;" in str(summary)


def test_what_was_held_before_the_rest_was_planned_anew_counts(pipe: DiffusionPipeline) -> None:
    """Guidance ends five steps before the end, and these five are computed; seventeen were held before them."""
    with tenuto.accelerated(pipe, 0.25):
        draw(pipe, "sd1", steps=26, **switched_off(20))
        summary = tenuto.summary(pipe)
    assert summary.per_step[-1].work == 1 and summary.computed == 9 and summary.cache_bytes > 0
    assert summary.keep == "output" and summary.corrected and summary.estimated is not None
    assert "held      the output" in str(summary) and "that of the full run" not in str(summary)


def test_what_was_held_before_everything_was_computed_is_said_with_the_reason(pipe: DiffusionPipeline) -> None:
    scheduler = pipe.scheduler
    with tenuto.running(pipe.unet, scheduler, evaluations=12) as run, torch.no_grad():
        scheduler.set_timesteps(24)
        x, text = torch.zeros(1, 4, 8, 8), torch.zeros(1, 5, 16)
        for place, t in enumerate(scheduler.timesteps):
            noise = pipe.unet(x, t, encoder_hidden_states=text).sample
            x = scheduler.step(noise, t, x).prev_sample
            if place == 9:
                with pytest.warns(UserWarning, match=r"more than once.*All remaining steps are computed\."):
                    scheduler.step(noise, t, x)
        summary = tenuto.summary(run)
    assert 12 < summary.computed < 24 and summary.keep == "output" and "more than once" in summary.in_full_because
    assert "the output, predicted as quadratic" in str(summary) and "; then nothing: the loop steps" in str(summary)


def test_nothing_held_is_said(pipe: DiffusionPipeline) -> None:
    with tenuto.accelerated(pipe, 1.0):
        draw(pipe, "sd1")
        summary = tenuto.summary(pipe)
    assert summary.keep == summary.predict == "" and summary.work == 1 and not summary.corrected
    assert "held      nothing;" in str(summary) and "############" in str(summary)


def test_units_are_counted_where_units_are_held(pipe: DiffusionPipeline) -> None:
    with tenuto.accelerated(pipe, policy="lifetimes", budget=0.5):
        draw(pipe, "sd1")
        summary = tenuto.summary(pipe)
    assert set(summary.per_unit) == {unit.name for unit in tenuto.score(pipe).units}
    assert all(0 < unit.computed <= unit.asked == 12 for unit in summary.per_unit.values())
    assert "of the unit-steps" in str(summary) and "some units" in str(summary)


def test_a_summary_says_how_many_steps_were_taken_before_an_interruption(pipe: DiffusionPipeline) -> None:
    def stop(pipe: Any, step: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = step == 4
        return given

    tenuto.enable(pipe, every=4)
    draw(pipe, "sd1", callback_on_step_end=stop)
    assert (tenuto.summary(pipe).steps, tenuto.summary(pipe).taken) == (12, 5)
    assert "12 steps of DDIMScheduler, only 5 of them taken" in str(tenuto.summary(pipe))
    draw(pipe, "sd1")
    assert tenuto.summary(pipe).taken == 12 and "taken" not in str(tenuto.summary(pipe))


@pytest.mark.parametrize(("evaluations", "steps", "more"), [(12, 20, 48), (12, 24, 48), (12, 25, 0), (10, 14, 0)])
def test_a_summary_advises_more_steps_if_half_of_them_are_evaluated(
    pipe: DiffusionPipeline, evaluations: int, steps: int, more: int
) -> None:
    with tenuto.accelerated(pipe, evaluations=evaluations):
        draw(pipe, "sd1", steps=steps)
        summary = tenuto.summary(pipe)
    assert summary.advice.startswith(f"{more} steps with {evaluations} evaluations") == bool(more)
    assert ("advice" in str(summary)) == bool(more)


def test_budgets_and_schedulers_that_add_noise_get_no_such_advice(pipe: DiffusionPipeline) -> None:
    tenuto.enable(pipe, budget=0.6)
    draw(pipe, "sd1", steps=20)
    assert not tenuto.summary(pipe).advice
    tenuto.configure(pipe, evaluations=12)
    with pytest.warns(UserWarning, match="random noise"):
        draw(pipe, "sd1", steps=20, eta=1.0)
    assert not tenuto.summary(pipe).advice
