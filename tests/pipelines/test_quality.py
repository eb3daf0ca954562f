"""A quality that is asked for: pipelines choose the evaluated steps on the way."""

from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler, DiffusionPipeline, EulerDiscreteScheduler, HeunDiscreteScheduler

import tenuto
from tenuto.errors import UsageError
from tests.helpers.pipelines import QUIET, computed_steps, draw, tiny, two_experts

pytestmark = QUIET


@pytest.fixture
def pipe() -> DiffusionPipeline:
    return tiny("sd1")


def test_a_higher_quality_takes_more_evaluations_and_comes_nearer(pipe: DiffusionPipeline) -> None:
    full = draw(pipe, "sd1", steps=40)
    counts, errors = [], []
    for quality in (20, 60):
        with tenuto.accelerated(pipe, quality=quality):
            got = draw(pipe, "sd1", steps=40)
            summary = tenuto.summary(pipe)
        assert summary.corrected and summary.estimated is not None and not summary.too_few
        assert summary.asked == f"a quality of {quality} dB" and "dB to the full run" in str(summary)
        counts.append(summary.computed_steps)
        errors.append(float((got - full).square().mean()))
    assert counts[0] < counts[1] <= 40 and errors[1] <= errors[0]


def test_it_is_the_same_every_time(pipe: DiffusionPipeline) -> None:
    with tenuto.accelerated(pipe, quality=35):
        one = draw(pipe, "sd1", steps=30)
        marks = [step.work for step in tenuto.summary(pipe).per_step]
        two = draw(pipe, "sd1", steps=30)
        assert marks == [step.work for step in tenuto.summary(pipe).per_step]
    assert torch.equal(one, two)


def test_a_limit_is_kept_and_it_is_said_that_more_was_needed(pipe: DiffusionPipeline) -> None:
    with tenuto.accelerated(pipe, quality=80, evaluations=6):
        draw(pipe, "sd1", steps=30)
        summary = tenuto.summary(pipe)
    assert summary.computed_steps <= 6 and summary.too_few and "more evaluations would have been needed" in str(summary)


def test_a_second_expert_costs_three_evaluations_at_most() -> None:
    """Its first steps are near to each other, and then distances grow as at the beginning of the whole run."""
    counts = []
    for pipe in (tiny("wan"), two_experts()):
        with tenuto.accelerated(pipe, quality=20):
            draw(pipe, "wan", steps=40)
            counts.append(len(computed_steps(pipe)))
    assert counts[0] < counts[1] <= counts[0] + 3


@pytest.mark.parametrize("options", [{"quality": 20}, {"evaluations": 12}])
def test_the_estimate_counts_the_errors_of_the_first_expert(options: dict[str, Any]) -> None:
    """The second expert takes the last steps only, and its own error tells next to nothing."""
    estimates = []
    for pipe in (tiny("wan"), two_experts(boundary=0.12)):
        with tenuto.accelerated(pipe, **options):
            draw(pipe, "wan", steps=40)
            summary = tenuto.summary(pipe)
        assert summary.estimated is not None
        estimates.append(summary.estimated)
    assert estimates[1] == pytest.approx(estimates[0], abs=4)


@pytest.mark.parametrize(("scheduler", "words"), [(HeunDiscreteScheduler, "twice"), (DDPMScheduler, "random noise")])
def test_where_it_cannot_be_measured_everything_is_computed(
    pipe: DiffusionPipeline, scheduler: Any, words: str
) -> None:
    pipe.scheduler = scheduler.from_config(pipe.scheduler.config)
    full = draw(pipe, "sd1", steps=12)
    with tenuto.accelerated(pipe, quality=40):
        with pytest.warns(UserWarning, match=words):
            got = draw(pipe, "sd1", steps=12)
        summary = tenuto.summary(pipe)
    assert torch.equal(got, full) and words in summary.in_full_because and summary.work == 1


def test_settings_change_from_call_to_call(pipe: DiffusionPipeline) -> None:
    pipe.scheduler = EulerDiscreteScheduler.from_config(pipe.scheduler.config)
    tenuto.enable(pipe, quality=30)
    draw(pipe, "sd1", steps=20)
    tenuto.configure(pipe, evaluations=9)
    draw(pipe, "sd1", steps=20)
    assert tenuto.summary(pipe).computed_steps == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quality": 40, "budget": 0.5}, "a quality, a budget or a speed-up"),
        ({"quality": 40, "every": 4}, "leave out every"),
        ({"quality": 40, "policy": "lifetimes"}, "leave out lifetimes"),
        ({"quality": "high"}, "decibels"),
        ({"budget": 0.5, "group": object()}, "only with a quality"),
    ],
)
def test_what_makes_no_sense_is_refused(pipe: DiffusionPipeline, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        tenuto.enable(pipe, **options)
