"""The parts of the ComfyUI node that do not need ComfyUI: rehearsing a sampler, planning, holding."""

import importlib
import json
import math
import sys
import tomllib
import types
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tenuto

PACK = Path(__file__).parent.parent.parent / "integrations" / "comfyui"


@pytest.fixture(scope="module")
def parts() -> Any:
    """The modules of the pack, without its __init__, which needs ComfyUI."""
    package = types.ModuleType("comfyui_parts")
    package.__path__ = [str(PACK)]
    sys.modules["comfyui_parts"] = package
    names = ("rehearsal", "deciding", "holding", "mathematics")
    yield types.SimpleNamespace(**{name: importlib.import_module(f"comfyui_parts.{name}") for name in names})
    for name in [name for name in sys.modules if name.partition(".")[0] == "comfyui_parts"]:
        del sys.modules[name]


SIGMAS = [14 * (0.002 / 14) ** (step / 39) for step in range(40)] + [0.0]
Model = Callable[[Tensor, float], Tensor]


def euler(model: Model, x: Tensor, noise: float = 0.0) -> Tensor:
    for now, then in pairwise(SIGMAS):
        x = x + (x - model(x, now)) / now * (then - now)
        x = x + noise * torch.randn_like(x)
    return x


def heun(model: Model, x: Tensor) -> Tensor:
    for now, then in pairwise(SIGMAS):
        slope = (x - model(x, now)) / now
        ahead = x + slope * (then - now)
        if then > 0:
            slope = (slope + (ahead - model(ahead, then)) / then) / 2
        x = x + slope * (then - now)
    return x


def gaussian(x: Tensor, sigma: float) -> Tensor:
    """The exact clean estimate for pictures whose values are normal, with a mean of 0.5 and a deviation of 0.6."""
    return 0.5 + (x - 0.5) * 0.36 / (0.36 + sigma**2)


def drawn(
    parts: Any, sampler: Any, evaluations: int | None, corrected: bool = True, quality: float | None = None
) -> tuple[Tensor, Tensor, int]:
    """(the held result, the full result, how often the model was called)."""
    start = 14 * torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    seen: list[float] = []
    full = sampler(lambda x, sigma: (seen.append(sigma), gaussian(x, sigma))[1], start)
    wish = parts.deciding.Wish(1, evaluations, quality)
    levels = parts.mathematics.levels_of(seen, False)
    pace = None if quality is None else parts.mathematics.Pace(quality, levels, evaluations)
    held = parts.holding.Held(seen, False, parts.deciding.plan_for(seen, False, wish).computed, pace)
    calls = 0

    def model(x: Tensor, sigma: float) -> Tensor:
        def compute() -> dict[str, Tensor]:
            nonlocal calls
            calls += 1
            return {"denoised": gaussian(x, sigma)}

        try:
            return held.next(x, compute)[0]["denoised"]
        except parts.holding.Again:
            if corrected:
                raise
            known = held.known[held._next - 1]
            known.sample = None
            return known.kept["denoised"]

    return parts.holding.play(lambda: sampler(model, start), held), full, calls


def error(result: tuple[Tensor, Tensor, int]) -> float:
    return float((result[0] - result[1]).norm() / result[1].norm())


@pytest.mark.parametrize("sampler", [euler, heun])
def test_the_more_evaluations_the_nearer_and_each_is_made_once(parts, sampler):
    errors = []
    for evaluations in (6, 12, 24):
        result = drawn(parts, sampler, evaluations)
        assert result[2] == evaluations
        errors.append(error(result))
    assert max(errors[:2]) > errors[2] and max(errors[1:]) < 0.03


def test_running_the_sampler_again_brings_the_result_nearer(parts):
    assert error(drawn(parts, euler, 12)) < 0.5 * error(drawn(parts, euler, 12, corrected=False))


def test_a_quality_takes_as_many_evaluations_as_it_needs_and_is_reached(parts):
    def decibels(result: tuple[Tensor, Tensor, int]) -> float:
        return float(10 * torch.log10(16 * result[1].var() / (result[0] - result[1]).square().mean()))

    rough, fine = (drawn(parts, euler, None, quality=quality) for quality in (30, 55))
    assert rough[2] < fine[2] < 40
    assert decibels(rough) > 27 and decibels(fine) > 52
    assert drawn(parts, euler, 7, quality=70)[2] == 7  # the most


def test_a_quality_is_refused_where_it_cannot_be_measured(parts):
    wish = parts.deciding.Wish(quality=40)
    assert "no quality can be measured" in parts.deciding.plan_for([3.0, 2.0, 2.0, 1.0], False, wish).in_full_because
    assert not parts.deciding.plan_for(SIGMAS[:-1], False, wish).in_full_because
    with pytest.raises(tenuto.TenutoError, match="decibels from 10 to 80"):
        parts.deciding.Wish(quality=3)


def test_a_quality_that_was_missed_is_told_with_a_limit_and_without(parts):
    def held(most: int | None, jumps: float) -> Any:
        levels = parts.mathematics.levels_of(SIGMAS[:-1], False)
        made = parts.holding.Held(SIGMAS[:-1], False, frozenset(range(40)), parts.mathematics.Pace(60, levels, most))

        def model(x: Tensor, sigma: float) -> Tensor:
            value = gaussian(x, sigma) + jumps * math.sin(1e3 * sigma)
            return made.next(x, lambda: {"denoised": value})[0]["denoised"]

        start = torch.linspace(-20, 20, 64)[None]
        parts.holding.play(lambda: euler(model, start), made)
        return made.account

    assert not held(None, 0.0).missed and held(5, 0.0).missed and held(None, 10.0).missed


@pytest.mark.parametrize(
    ("sigmas", "flow", "words"),
    [
        ([1.0, 1.0, 0.9, 0.8, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2], True, "only noise or none"),
        ([1.0, 0.9, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.0], False, "only noise or none"),
        ([math.inf, *range(20, 1, -1)], False, "finite"),
        ([math.nan] * 12, True, "finite"),
    ],
)
def test_levels_from_which_no_noise_can_be_told_are_computed_in_full(parts, sigmas, flow, words):
    plan = parts.deciding.plan_for(sigmas, flow, parts.deciding.Wish(evaluations=7))
    assert words in plan.in_full_because and len(plan.computed) == len(sigmas)


@pytest.mark.parametrize("budget", [math.nan, math.inf, 0.0, -1.0, 1e308])
def test_a_budget_that_is_no_share_is_refused(parts, budget):
    with pytest.raises(tenuto.TenutoError, match="share of the work"):
        parts.deciding.Wish(budget)


def test_a_model_whose_estimate_never_changes_is_followed_exactly(parts):
    held = parts.holding.Held(SIGMAS[:-1], False, frozenset(range(0, 40, 4)))
    picture = torch.arange(5.0)[None]

    def model(x: Tensor, sigma: float) -> Tensor:
        return held.next(x, lambda: {"denoised": picture})[0]["denoised"]

    result = parts.holding.play(lambda: euler(model, torch.ones(1, 5)), held)
    assert torch.allclose(result, picture, atol=1e-5)


def test_a_rehearsal_tells_samplers_that_add_noise_or_choose_their_steps(parts):
    def run(sampler: Any) -> Any:
        def ran(model: Model, change: int) -> None:
            torch.manual_seed(change)
            sampler(model, torch.ones(4))

        return parts.rehearsal.rehearse(ran)

    def choosy(model: Model, x: Tensor) -> Tensor:
        sigma = 1.0
        while sigma > 0.01:
            sigma *= 0.5 if float(model(x, sigma).mean()) > 0.1 else 0.8
        return x

    plain = run(euler)
    assert not plain.in_full_because and plain.sigmas == tuple(SIGMAS[:-1])
    assert len(run(heun).sigmas) == 2 * 40 - 1
    assert "adds noise" in run(lambda model, x: euler(model, x, noise=0.1)).in_full_because
    assert "chooses its steps" in run(choosy).in_full_because


@pytest.mark.parametrize("count", [1, 2, 6, 11, 39, 40])
def test_a_plan_has_as_many_evaluations_as_were_asked_for_and_begins_with_the_first(parts, count):
    plan = parts.deciding.plan_for(SIGMAS[:-1], False, parts.deciding.Wish(1.0, count))
    assert len(plan.computed) == count and 0 in plan.computed
    assert bool(plan.in_full_because) == (count == 40)


def test_a_plan_of_a_two_stage_sampler_goes_to_new_levels_first(parts):
    twice = [SIGMAS[(place + 1) // 2] for place in range(39)]  # 0, 1, 1, 2, 2, …
    plan = parts.deciding.plan_for(twice, False, parts.deciding.Wish(0.25))
    assert len({twice[place] for place in plan.computed}) == len(plan.computed) == 10
    more = parts.deciding.plan_for(twice, False, parts.deciding.Wish(1.0, 30)).computed
    assert len(more) == 30 and len({twice[place] for place in more}) == 20


def test_a_budget_leaves_six_evaluations_and_few_steps_are_computed_in_full(parts):
    assert len(parts.deciding.plan_for(SIGMAS[:12], False, parts.deciding.Wish(0.1)).computed) == 6
    assert "few steps" in parts.deciding.plan_for(SIGMAS[:6], False, parts.deciding.Wish(0.25)).in_full_because


def test_levels_of_a_flow_and_of_noise_meet_at_equal_ratios(parts):
    flow = parts.mathematics.levels_of([0.5], True).log_snr
    assert flow == parts.mathematics.levels_of([1.0], False).log_snr and math.isclose(flow[0], 0, abs_tol=1e-9)


def test_a_report_says_what_was_computed_or_why_everything_was(parts):
    told = str(parts.holding.Report(5, (0, 3), 2.0))
    assert "2 of 5" in told and "■··■·" in told and "3.0 seconds" in told
    assert "because of this" in str(parts.holding.Report(5, (0, 1, 2, 3, 4), 2.0, "of this"))


def test_the_pack_has_the_layout_of_the_registry():
    told = tomllib.loads((PACK / "pyproject.toml").read_text())
    assert told["tool"]["comfy"]["DisplayName"] == "Tenuto"
    wanted = [line for line in (PACK / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert told["project"]["dependencies"] == wanted == []  # Tenuto's name on PyPI is not its own
    (workflow,) = (PACK / "example_workflows").glob("*.json")
    graph = json.loads(workflow.read_text())
    kinds = {node["id"]: node["type"] for node in graph["nodes"]}
    ours = next(number for number, kind in kinds.items() if kind == "Tenuto")
    assert {kinds[link[3]] for link in graph["links"] if link[1] == ours} == {"KSampler"}
