"""tenuto.compare: the same request in full, held and with fewer steps."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import LCMScheduler

import tenuto
from tenuto.comparing import _scaled
from tenuto.errors import UsageError
from tests.helpers.pipelines import BETAS, QUIET, prompt, tiny

pytestmark = QUIET


def compared(pipe: Any, **options: Any) -> Any:
    given = {"seeds": 2, "num_inference_steps": 16, "output_type": "pt", **prompt("sd1"), **options}
    return tenuto.compare(pipe, **given)


@pytest.mark.parametrize(
    "seeds", [0, -1, 65, 10**30, 2.5, "ab", None, True, [], range(10**12), [1.5], [10**30], ["1"], [True]]
)
def test_seeds_that_make_no_sense_are_refused_at_once(seeds: Any) -> None:
    with pytest.raises(UsageError, match=r"[Ss]eed"):
        tenuto.compare(object(), seeds=seeds)


@pytest.mark.parametrize("ask", [tenuto.compare, tenuto.configure, tenuto.disable, tenuto.enable, tenuto.summary])
@pytest.mark.parametrize("thing", [5, None, "owner/name"])
def test_what_is_no_pipeline_is_refused_in_words(ask: Any, thing: Any) -> None:
    with pytest.raises(UsageError, match="Only a diffusers pipeline"):
        ask(thing)


def test_every_option_of_enable_can_be_compared() -> None:
    """Many pipelines ignore arguments that they do not know, so an option that reached them would be lost."""
    pipe = tiny("sd1")
    assert compared(pipe, evaluations=9).summary.computed == 9
    assert compared(pipe, speedup=2).summary.computed == 8
    assert compared(pipe, quality=20).summary.asked == "a quality of 20 dB"
    assert compared(pipe, every=4, options={"keep": "branch"}).summary.keep == "branch"


@pytest.mark.parametrize(
    ("slip", "remedy"), [("budgt", "mean budget"), ("evaluation", "mean evaluations"), ("steps", "num_inference_steps")]
)
def test_a_slip_is_not_handed_to_a_pipeline_that_ignores_it(slip: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy):
        compared(tiny("sd1"), **{slip: 8})


def test_a_run_that_is_not_finite_is_not_taken_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tiny("sd1")
    plain, calls = pipe.unet.forward, 0

    def breaks(*args: Any, **kwargs: Any) -> Any:
        """After the full run of both seeds."""
        nonlocal calls
        calls += 1
        result = plain(*args, **kwargs)
        first = result[0]
        return (first * math.nan,) if calls > 32 else (first,)

    monkeypatch.setattr(pipe.unet, "forward", breaks)
    found = compared(pipe, output_type="latent", budget=0.5)
    assert torch.isfinite(found.full).all() and found.held.isnan().all()
    assert found.decibels["held"] == [-math.inf, -math.inf]
    assert "little to do with" in found.verdict and "identical" not in found.verdict


def test_equal_pictures_are_called_identical_also_in_the_table() -> None:
    table = str(compared(tiny("sd1"), budget=1.0))
    assert "identical to those of the full run" in table and table.splitlines()[3].endswith("   identical")


def test_the_verdict_says_why_nothing_is_gained() -> None:
    pipe = tiny("sd1")
    pipe.scheduler = LCMScheduler(**BETAS)
    verdict = compared(pipe, seeds=1).verdict
    assert "identical" in verdict and "Nothing is gained: LCMScheduler adds random noise at every step" in verdict


@pytest.mark.parametrize(
    "given", [{"timesteps": list(range(990, 0, -60))}, {"sigmas": [14 - 0.9 * i for i in range(16)]}]
)
def test_noise_levels_given_by_hand_are_not_taken_for_fewer_steps(given: dict[str, Any]) -> None:
    """The pipeline takes all of them, whatever num_inference_steps says: the plain run would be the full run."""
    result = tenuto.compare(tiny("sdxl"), seeds=1, output_type="pt", **prompt("sdxl"), **given)
    assert result.summary.computed_steps < result.summary.steps and result.plain is None
    assert "Fewer plain steps could not be drawn" in result.verdict and "use plain steps" not in result.verdict


def test_all_runs_are_scaled_as_the_full_run_is() -> None:
    """Otherwise a value a little outside of [0, 1] in one run would be taken for a great difference."""
    full, held, plain = _scaled(torch.tensor([0.0, 1.0]), torch.tensor([-1e-6, 1.0]), None)
    assert plain is None and float(full.min()) == -1 and float((full - held).abs().max()) < 1e-5


def test_latents_are_judged_by_their_own_range() -> None:
    """Before, latents were clamped to [-1, 1] like pictures, and a run that was near was said to differ visibly."""
    pictures, latents = (compared(tiny("sd1"), output_type=kind, num_inference_steps=30) for kind in ("pt", "latent"))
    (seen,), (told,) = ([float(one)] for one in (np.mean(x.decibels["held"]) for x in (pictures, latents)))
    assert abs(seen - told) < 10 and min(seen, told) > 40
    assert "the latents are very near to those of the full run" in latents.verdict
    assert "the pictures cannot be told from" in pictures.verdict
    with pytest.raises(UsageError, match="Latents cannot be shown"):
        latents.save("nowhere.png")


def test_a_pipeline_that_returns_a_tuple_is_compared_as_well() -> None:
    with_tuple, plain = compared(tiny("sd1"), return_dict=False), compared(tiny("sd1"))
    assert with_tuple.decibels == plain.decibels


def test_the_verdict_says_what_was_drawn() -> None:
    call = {"seeds": 1, "num_inference_steps": 8, "output_type": "pt", **prompt("wan")}
    assert "the videos" in tenuto.compare(tiny("wan"), **call).verdict


def test_a_pipeline_is_enabled_as_before_whatever_happens() -> None:
    pipe = tiny("sd1")
    tenuto.enable(pipe, evaluations=7)
    with pytest.raises(ZeroDivisionError):
        compared(pipe, callback_on_step_end=lambda *_: 1 // 0)
    pipe(**prompt("sd1"), num_inference_steps=16, output_type="latent")
    assert tenuto.summary(pipe).computed_steps == 7
