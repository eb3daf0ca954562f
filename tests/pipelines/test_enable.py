"""On and off: enable, configure, disable, as often as one likes; what is refused, and that nothing is left behind."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline
from torch import nn

import tenuto
from tenuto.errors import ScheduleError, TenutoError, UsageError
from tests.helpers.pipelines import QUIET, attributes, counted, draw, tiny

pytestmark = QUIET


@pytest.fixture
def pipe() -> DiffusionPipeline:
    return tiny("sd1")


def test_enabled_twice_it_has_the_settings_given_last(pipe: DiffusionPipeline) -> None:
    draw(pipe, "sd1")
    before = attributes(pipe)
    for options, count in (({"evaluations": 3}, 3), ({"budget": 0.5}, 6), ({"every": 6}, 2), ({"budget": 1.0}, 12)):
        tenuto.enable(pipe, **options)
        with counted(pipe) as counts:
            draw(pipe, "sd1")
        assert set(counts.values()) == {count}, options
    tenuto.disable(pipe)
    assert attributes(pipe) == before


@pytest.mark.parametrize("first", [{"evaluations": 3}, {"every": 4, "keep": "branch"}])
@pytest.mark.parametrize(
    "second", [{"every": 2, "keep": "update"}, {"policy": "lifetimes", "budget": 0.5}, {"every": 6}]
)
def test_units_and_outputs_can_be_exchanged_without_disabling(
    pipe: DiffusionPipeline, first: dict[str, Any], second: dict[str, Any]
) -> None:
    full, before = draw(pipe, "sd1"), attributes(pipe)
    with tenuto.accelerated(tiny("sd1"), **second) as fresh:
        expected = draw(fresh, "sd1")
    tenuto.enable(pipe, **first)
    draw(pipe, "sd1")
    tenuto.enable(pipe, **second)
    assert torch.equal(draw(pipe, "sd1"), expected)
    tenuto.disable(pipe)
    assert torch.equal(draw(pipe, "sd1"), full)
    assert attributes(pipe) == before


def test_disabled_twice_nothing_happens(pipe: DiffusionPipeline) -> None:
    full, before = draw(pipe, "sd1"), attributes(pipe)
    tenuto.disable(pipe)
    tenuto.enable(pipe, evaluations=3)
    draw(pipe, "sd1")
    for _ in range(2):
        tenuto.disable(pipe)
        assert torch.equal(draw(pipe, "sd1"), full)
        assert attributes(pipe) == before


def test_an_enabled_pipeline_is_configured_for_its_next_generations(pipe: DiffusionPipeline) -> None:
    with pytest.raises(UsageError, match="is not enabled; tenuto.enable"):
        tenuto.configure(pipe, 0.5)
    tenuto.enable(pipe, evaluations=3)
    engine, first = pipe._tenuto, draw(pipe, "sd1")
    tenuto.configure(pipe, 0.5)
    draw(pipe, "sd1")
    assert tenuto.summary(pipe).computed == 6
    tenuto.configure(pipe, evaluations=3)
    assert torch.equal(draw(pipe, "sd1"), first)
    assert pipe._tenuto is engine  # and so whatever was recorded


def test_a_wrong_setting_leaves_the_pipeline_as_it_was(pipe: DiffusionPipeline) -> None:
    tenuto.enable(pipe, evaluations=3)
    expected = draw(pipe, "sd1")
    for wrong in ({"budget": 0.0}, {"evaluations": 0}, {"every": 4, "tau": 1.0}, {"policy": "best"}, {"mode": "quick"}):
        with pytest.raises(TenutoError):
            tenuto.configure(pipe, **wrong)
        assert torch.equal(draw(pipe, "sd1"), expected), wrong
    with pytest.raises(TenutoError):
        tenuto.enable(pipe, keep="branch", every=0)
    assert torch.equal(draw(pipe, "sd1"), expected)
    assert tenuto.summary(pipe).computed == 3


def test_a_setting_may_change_while_a_picture_is_drawn(pipe: DiffusionPipeline) -> None:
    """It is for the next generation: this one ends as it began."""

    def change(_: Any, step: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        if step == 5:
            tenuto.configure(pipe, evaluations=9)
        return given

    tenuto.enable(pipe, evaluations=3)
    expected = draw(pipe, "sd1")
    assert torch.equal(draw(pipe, "sd1", callback_on_step_end=change), expected)
    draw(pipe, "sd1")
    assert tenuto.summary(pipe).computed == 9


def test_a_pipeline_may_be_disabled_while_a_picture_is_drawn(pipe: DiffusionPipeline) -> None:
    def off(_: Any, step: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        if step == 5:
            tenuto.disable(pipe)
        return given

    full = draw(pipe, "sd1")
    tenuto.enable(pipe, evaluations=3)
    assert draw(pipe, "sd1", callback_on_step_end=off).isfinite().all()
    assert torch.equal(draw(pipe, "sd1"), full)


def test_configure_keeps_how_the_denoiser_is_run(pipe: DiffusionPipeline) -> None:
    tenuto.enable(pipe, 0.5, mode="skip", on_change="refuse")
    tenuto.configure(pipe, evaluations=3)
    request = pipe._tenuto.request
    assert (request.budget, request.evaluations, request.mode, request.on_change) == (None, 3, "skip", "refuse")
    tenuto.configure(pipe, on_change="rescore")
    assert (pipe._tenuto.request.mode, pipe._tenuto.request.on_change) == ("skip", "rescore")


def test_nonsense_is_refused_and_leaves_nothing_behind(pipe: DiffusionPipeline, tmp_path: Path) -> None:
    before = attributes(pipe)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"budget": 0.0}, "above 0"),
        ({"budget": 0.5, "speedup": 2}, "not two of them"),
        ({"budget": 0.5, "evaluations": 2}, "not two of them"),
        ({"evaluations": 0}, "at least 1, not 0"),
        ({"evaluations": 2.5}, "a whole number, not 2.5"),
        ({"budgets": 0.5}, "There is no option 'budgets'. Did you mean budget"),
        ({"log_snr": [1.0]}, "The noise levels are those of the pipeline's scheduler: leave out log_snr"),
        ({"ahead": True}, "leave out ahead"),
        ({"steps": 50}, "is given where you generate"),
        ({"xyz": 50}, "The options are budget, check_weights, "),
        ({"tau": 0.5}, "belongs to the policy lifetimes"),
        ({"policy": "best"}, "The policy is one of"),
        ({"mode": "quick"}, "The mode is one of"),
        ({"mode": "eager"}, "nothing is held"),
        ({"on_change": "ignore"}, "on_change is one of"),
        ({"correction": "maybe"}, "correction is True or False, not 'maybe'"),
        ({"compiled": "no"}, "compiled is True or False, not 'no'"),
        ({"check_weights": 1}, "check_weights is True or False, not 1"),
        ({"schedule": str(tmp_path / "none.json")}, "none.json"),
        ({"schedule": "owner/name", "budget": 0.5}, "says everything"),
        ({"schedule": tenuto.schedule(tiny("sdxl"), 12)}, "not for this UNet2DConditionModel"),
    ]
    for options, message in refused:
        with pytest.raises(TenutoError, match=message):
            tenuto.enable(pipe, **options)
        assert attributes(pipe) == before, options
    with pytest.raises(UsageError, match="is not enabled"):
        tenuto.summary(pipe)
    with pytest.raises(UsageError, match=r"the type Conv2d\. For a network in a loop of your own: tenuto\.running"):
        tenuto.enable(pipe.unet.conv_in)  # type: ignore[arg-type]
    pipe.unet = nn.Identity()
    with pytest.raises(TenutoError, match="The units of a Identity are not known: its output can be held"):
        tenuto.enable(pipe, keep="branch")


def test_an_exception_leaves_the_pipeline_usable(pipe: DiffusionPipeline) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    tenuto.enable(pipe, every=4)
    expected = draw(pipe, "sd1")
    handle = pipe.unet.conv_out.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        draw(pipe, "sd1", seed=1)
    handle.remove()
    assert torch.equal(draw(pipe, "sd1"), expected)
    with pytest.raises(KeyboardInterrupt):
        draw(pipe, "sd1", seed=1, callback_on_step_end=fail)
    assert not pipe._tenuto._loops  # the denoiser is nobody's in between
    assert torch.equal(draw(pipe, "sd1"), expected)


def test_an_interrupted_generation_ends_and_the_next_begins(pipe: DiffusionPipeline) -> None:
    def stop(pipe: Any, step: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = step == 5
        return given

    with tenuto.accelerated(pipe, every=4):
        expected = draw(pipe, "sd1")
        draw(pipe, "sd1", seed=1, callback_on_step_end=stop)
        assert tenuto.summary(pipe).evaluations == 6
        assert torch.equal(draw(pipe, "sd1"), expected)


def test_a_schedule_or_its_file_says_everything(pipe: DiffusionPipeline, tmp_path: Path) -> None:
    schedule = tenuto.schedule(pipe, 12, every=4)
    schedule.save(tmp_path / "schedule.json")
    drawn = []
    for given in (schedule, str(tmp_path / "schedule.json"), tmp_path / "schedule.json"):
        with tenuto.accelerated(pipe, schedule=given):
            drawn.append(draw(pipe, "sd1"))
            with pytest.raises(ScheduleError, match="12 steps, but the pipeline evaluates its denoiser at 20"):
                draw(pipe, "sd1", steps=20)
            assert torch.equal(draw(pipe, "sd1"), drawn[0])


def test_a_hub_id_is_asked_of_the_hub(pipe: DiffusionPipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    schedule = tenuto.schedule(pipe, 12, evaluations=5)

    def pull(repository: str, directory: str) -> None:
        assert repository == "owner/name"
        schedule.save(Path(directory) / "schedule.json")

    monkeypatch.setitem(sys.modules, "tenuto_lab.hub", types.SimpleNamespace(pull=pull))
    tenuto.enable(pipe, schedule="owner/name")
    draw(pipe, "sd1")
    assert tenuto.summary(pipe).work == schedule.budget


def test_a_speed_up_instead_of_a_budget(pipe: DiffusionPipeline) -> None:
    with tenuto.accelerated(pipe, speedup=4):
        draw(pipe, "sd1", steps=40)
        assert tenuto.summary(pipe).work == 0.25


def test_few_steps_are_computed_in_full_and_it_is_said_why(pipe: DiffusionPipeline) -> None:
    full = draw(pipe, "sd1", steps=4)
    tenuto.enable(pipe)
    with pytest.warns(UserWarning, match="All 4 steps are evaluated, and nothing is gained"):
        assert torch.equal(draw(pipe, "sd1", steps=4), full)
    assert tenuto.summary(pipe).in_full_because == "with 4 steps there is nothing to leave out"
    tenuto.configure(pipe, 1.0)
    draw(pipe, "sd1", steps=4)
    assert not tenuto.summary(pipe).in_full_because


@pytest.mark.parametrize("ask", [tenuto.enable, tenuto.configure])
def test_a_group_that_is_none_is_refused_before_the_generation(pipe: DiffusionPipeline, ask: Any) -> None:
    tenuto.enable(pipe, evaluations=3)
    with pytest.raises(UsageError, match=r"process group of torch\.distributed .*, not 3\."):
        ask(pipe, quality=40, group=3)
    draw(pipe, "sd1")
    assert tenuto.summary(pipe).computed == 3


@pytest.mark.parametrize("ask", [tenuto.enable, tenuto.configure, tenuto.accelerated, tenuto.running])
def test_an_option_without_its_name_is_refused_in_words(pipe: DiffusionPipeline, ask: Any) -> None:
    given = (pipe.unet, pipe.scheduler, 12, 0.25) if ask is tenuto.running else (pipe, 0.25)
    with pytest.raises(UsageError, match=r"may be given without a name: write \w+\(…, evaluations=12\) instead of 12"):
        ask(*given, 12)
