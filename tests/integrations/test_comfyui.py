"""The ComfyUI node in real samplings with ComfyUI's own code. TENUTO_COMFYUI names a checkout; skipped without one."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.comfy_models import Studio, held, load_comfy, load_pack

CHECKOUT = os.environ.get("TENUTO_COMFYUI")
pytestmark = pytest.mark.skipif(not CHECKOUT, reason="TENUTO_COMFYUI names no checkout of ComfyUI")
STEPS = 16
PLAIN = ["euler", "lms", "dpmpp_2m", "deis", "ipndm", "res_multistep", "uni_pc", "gradient_estimation", "ddim"]
TWO_STAGES = ["heun", "dpm_2", "exp_heun_2_x0"]
UNGUIDED = ["euler_cfg_pp", "dpmpp_2m_cfg_pp", "res_multistep_cfg_pp"]  # they also read the unguided estimate
NOISY = ["euler_ancestral", "dpmpp_2m_sde", "dpmpp_sde", "lcm", "ddpm", "er_sde"]


@pytest.fixture(scope="module")
def comfy() -> Any:
    torch.set_num_threads(1)
    return load_comfy(Path(CHECKOUT or "").resolve())


@pytest.fixture(scope="module")
def studios(comfy) -> dict[str, Studio]:
    return {kind: Studio(comfy, kind) for kind in ("unet", "flux")}


@pytest.fixture(params=["unet", "flux"])
def studio(request, studios) -> Studio:
    return studios[request.param]


@pytest.mark.parametrize("sampler", PLAIN + TWO_STAGES + UNGUIDED)
def test_the_evaluations_are_those_that_the_report_names_and_a_budget_of_one_changes_nothing(studio, sampler):
    with studio.counting() as every:
        full = studio.draw(sampler=sampler, steps=STEPS)
    reports: list[Any] = []
    with studio.counting() as some:
        result = studio.draw(held(studio, reports.append, budget=0.4), sampler, STEPS)
    assert torch.equal(studio.draw(held(studio, budget=1.0), sampler, STEPS), full)
    assert result.isfinite().all() and not torch.equal(result, full)
    assert len(reports[0].computed) == some[0] < every[0] == reports[0].evaluations
    assert abs(some[0] - 0.4 * every[0]) <= 1.5


@pytest.mark.parametrize("sampler", NOISY)
def test_a_sampler_that_adds_noise_is_computed_in_full_and_the_report_says_so(studio, sampler):
    reports: list[Any] = []
    result = studio.draw(held(studio, reports.append, budget=0.4), sampler, STEPS)
    assert torch.equal(result, studio.draw(sampler=sampler, steps=STEPS))
    assert "adds noise" in str(reports[0])


def test_a_sampler_that_chooses_its_steps_is_computed_in_full(studios):
    reports: list[Any] = []
    result = studios["unet"].draw(held(studios["unet"], reports.append, budget=0.4), "dpm_adaptive", STEPS)
    assert torch.equal(result, studios["unet"].draw(sampler="dpm_adaptive", steps=STEPS))
    assert "chooses its steps" in str(reports[0])


@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m", "uni_pc", "heun", "euler_cfg_pp"])
def test_more_evaluations_come_nearer(studio, sampler):
    full = studio.draw(sampler=sampler, steps=STEPS)
    errors = []
    for evaluations in (6, 13):
        with studio.counting() as some:
            result = studio.draw(held(studio, evaluations=evaluations), sampler, STEPS)
        assert some[0] == evaluations
        errors.append(float((result - full).norm() / full.norm()))
    assert errors[1] < errors[0]


@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m", "uni_pc", "euler_cfg_pp"])
def test_a_quality_chooses_the_evaluations_and_the_report_estimates_it(studio, sampler):
    reports: list[Any] = []
    counts = []
    for quality in (20, 60):
        with studio.counting() as some:
            studio.draw(held(studio, reports.append, quality=quality), sampler, 2 * STEPS)
        assert len(reports[-1].computed) == some[0]
        counts.append(some[0])
    assert counts[0] <= counts[1] and "dB to the full run, estimated" in str(reports[0])
    studio.draw(held(studio, reports.append, quality=70, evaluations=9), sampler, 2 * STEPS)
    assert len(reports[-1].computed) <= 9


def test_a_quality_is_not_measured_where_a_sampler_comes_back_to_a_noise_level(studio):
    reports: list[Any] = []
    result = studio.draw(held(studio, reports.append, quality=40), "heun", STEPS)
    assert torch.equal(result, studio.draw(sampler="heun", steps=STEPS))
    assert "no quality can be measured" in str(reports[0])


@pytest.mark.parametrize("evaluations", [6, 11])
@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m", "uni_pc", "heun"])
def test_every_sampling_begins_anew(studio, sampler, evaluations):
    model = held(studio, evaluations=evaluations)
    first = studio.draw(model, sampler, STEPS)
    studio.draw(model, sampler, STEPS + 3)  # another number of steps
    wide = torch.cat([studio.noise, studio.noise], 3)
    studio.draw(model, sampler, STEPS, noise=wide, latent_image=torch.zeros_like(wide))  # another shape
    assert torch.equal(studio.draw(model, sampler, STEPS), first)


def test_an_interrupted_sampling_leaves_nothing_behind(studio):
    model = held(studio, evaluations=10)
    first = studio.draw(model, steps=STEPS)

    def interrupt(step: int, *_: Any) -> None:
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        studio.draw(model, steps=STEPS, callback=interrupt)
    assert torch.equal(studio.draw(model, steps=STEPS), first)


def test_each_step_is_announced_once_and_in_order(studio):
    told: list[int] = []
    studio.draw(held(studio, evaluations=10), steps=STEPS, callback=lambda step, *_: told.append(step))
    assert told == list(range(STEPS))


def test_the_model_that_goes_in_stays_as_it_was(studio):
    before = studio.draw(steps=STEPS)
    studio.draw(held(studio, budget=0.3), steps=STEPS)
    assert torch.equal(studio.draw(steps=STEPS), before)


def test_a_rehearsal_does_not_touch_the_random_numbers(studio):
    torch.manual_seed(3)
    studio.draw(held(studio, budget=0.4), "euler", STEPS)
    drawn = torch.rand(3)
    torch.manual_seed(3)
    studio.draw(sampler="euler", steps=STEPS)
    assert torch.equal(torch.rand(3), drawn)


def test_a_control_net_is_evaluated_only_where_the_model_is(comfy, studios):
    studio = studios["unet"]

    class Counting(comfy.controlnet.ControlBase):  # type: ignore[misc, name-defined]
        calls = 0

        def get_control(self, x: Any, t: Any, cond: Any, number: int, options: Any) -> None:
            type(self).calls += 1

        def copy(self) -> Any:
            return self

    guided = [[studio.positive[0][0], {"control": Counting(), "control_apply_to_uncond": True}]]
    with studio.counting() as some:
        studio.draw(held(studio, budget=0.4), steps=STEPS, positive=guided, negative=guided)
    assert Counting.calls == some[0] < STEPS


def test_other_nodes_in_the_guidance_are_asked_where_the_model_is(studios):
    studio, asked = studios["unet"], []
    model = studio.model.clone()

    def sharper(args: dict[str, Any]) -> Any:
        asked.append(float(args["sigma"][0]))
        return args["denoised"] * 1.01

    model.set_model_sampler_post_cfg_function(sharper)
    full = studio.draw(model, steps=STEPS)
    assert len(asked) == STEPS
    asked.clear()
    patched = load_pack().NODE_CLASS_MAPPINGS["Tenuto"]().patch(model, 0.4, 0)[0]
    result = studio.draw(patched, steps=STEPS)
    assert 0 < len(asked) < STEPS
    near = (result - full).norm() / full.norm()
    assert near < (result - studio.draw(steps=STEPS)).norm() / full.norm()  # it is the sharper picture that is followed


def test_another_wrapper_around_the_prediction_still_sees_every_prediction(studios):
    from comfy.patcher_extension import WrappersMP  # type: ignore[import-not-found]

    studio, seen = studios["unet"], []
    model = studio.model.clone()

    def watch(executor: Any, x: Any, timestep: Any, *rest: Any) -> Any:
        seen.append(float(timestep[0]))
        return executor(x, timestep, *rest)

    model.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, "another", watch)
    patched = load_pack().NODE_CLASS_MAPPINGS["Tenuto"]().patch(model, 0.4, 0)[0]
    assert torch.equal(studio.draw(patched, steps=STEPS), studio.draw(held(studio, budget=0.4), steps=STEPS))
    assert len(seen) >= STEPS


def test_image_to_image_and_inpainting(studio):
    picture = torch.randn(studio.noise.shape, generator=torch.Generator().manual_seed(9))
    mask = torch.zeros(1, 1, 8, 8)
    mask[..., :4] = 1
    for sampler in ("euler", "ddim"):  # ddim draws noise of its own for the part that is kept
        given: dict[str, Any] = {"latent_image": picture, "noise_mask": mask, "denoise": 0.7}
        full = studio.draw(sampler=sampler, steps=STEPS, **given)
        reports: list[Any] = []
        result = studio.draw(held(studio, reports.append, budget=0.5), sampler, STEPS, **given)
        assert not reports[0].in_full_because and len(reports[0].computed) < reports[0].evaluations == STEPS
        assert torch.allclose(result[..., 4:], picture[..., 4:], atol=1e-4)  # what is not masked is kept
        assert (result - full).norm() < 0.2 * (full - picture).norm()


def test_a_number_of_evaluations_goes_before_the_budget(studio):
    reports: list[Any] = []
    studio.draw(held(studio, reports.append, budget=0.9, evaluations=6), steps=STEPS)
    assert len(reports[0].computed) == 6


def test_the_pack_registers_one_node_with_the_interface_of_comfyui(comfy):
    pack = load_pack()
    (name,) = pack.NODE_CLASS_MAPPINGS
    node = pack.NODE_CLASS_MAPPINGS[name]
    inputs = node.INPUT_TYPES()["required"]
    assert node.RETURN_TYPES == ("MODEL",) and next(iter(inputs)) == "model" and hasattr(node, node.FUNCTION)
    assert pack.NODE_DISPLAY_NAME_MAPPINGS.keys() == pack.NODE_CLASS_MAPPINGS.keys()
