"""Pipelines made faster in one call: what they draw, what is computed for it, and what they are left as."""

import copy
import sys
import types
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    HeunDiscreteScheduler,
    LCMScheduler,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionXLImg2ImgPipeline,
)
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tenuto
from tenuto.errors import ScheduleError, TenutoError, UsageError
from tenuto.models.diffusers.attachment import attach
from tenuto.runtime.residual import Branch, plain
from tests.helpers.pipelines import (
    BETAS,
    EVERY_FOURTH,
    FAMILIES,
    QUIET,
    TRANSFORMERS,
    counted,
    denoiser_in,
    draw,
    evaluation,
    picture,
    tiny,
)

pytestmark = QUIET


def attributes(pipe: DiffusionPipeline) -> dict[str, dict[str, Any]]:
    """What a denoiser has by itself; of a pipeline and its scheduler, whose every loop leaves something behind, the
    names."""
    modules = dict(denoiser_in(pipe).named_modules())
    found = {name: {key: id(value) for key, value in vars(one).items()} for name, one in modules.items()}
    return {**found, "pipe": dict.fromkeys(vars(pipe), 0), "scheduler": dict.fromkeys(vars(pipe.scheduler), 0)}


@pytest.fixture
def pipe() -> DiffusionPipeline:
    return tiny("sd1")


# -------------------------------------------------------------------------------------------------------- families


@pytest.mark.parametrize("family", FAMILIES)
def test_all_of_the_work_draws_the_same_and_a_quarter_computes_a_quarter(family: str) -> None:
    pipe = tiny(family)
    full = draw(pipe, family)
    with counted(pipe) as counts:
        draw(pipe, family)
    calls = 2 if family == "wan" else 1  # with the prompt and without it, one after the other
    assert set(counts.values()) == {12 * calls}
    before = attributes(pipe)

    tenuto.enable(pipe, budget=1.0)
    assert torch.equal(draw(pipe, family), full)
    tenuto.disable(pipe)
    assert attributes(pipe) == before

    tenuto.enable(pipe, budget=0.25)
    with counted(pipe) as counts:
        quarter = draw(pipe, family)
    assert set(counts.values()) == {3 * calls} and not tenuto.summary(pipe).per_unit  # nobody asked for its units
    assert torch.equal(draw(pipe, family), quarter) and torch.isfinite(quarter).all()
    assert not torch.equal(quarter, full)
    tenuto.disable(pipe)
    assert attributes(pipe) == before
    assert torch.equal(draw(pipe, family), full)


@pytest.mark.parametrize("family", FAMILIES)
def test_units_can_be_held_instead_of_the_output(family: str) -> None:
    pipe = tiny(family)
    full = draw(pipe, family, steps=8)
    for keep in ("update", "branch"):
        with tenuto.accelerated(pipe, every=2, closing=0, opening=False, keep=keep), counted(pipe) as counts:
            held = draw(pipe, family, steps=8)
            assert tenuto.summary(pipe).work == 0.5
        once = 2 if family == "wan" else 1
        assert set(counts.values()) == {4 * once}, keep
        assert not torch.equal(held, full)
    with tenuto.accelerated(pipe, policy="lifetimes", budget=0.5):  # which ranks units by their scores
        assert torch.isfinite(draw(pipe, family, steps=8)).all()
        shares = {unit.computed for unit in tenuto.summary(pipe).per_unit.values()}
        assert len(shares) > 1
    assert torch.equal(draw(pipe, family, steps=8), full)


@pytest.mark.parametrize("family", ["dit", *TRANSFORMERS])
def test_every_unit_finds_its_tokens_in_one_piece(family: str) -> None:
    """What is cut into patches lies as its pixels do, and sums with it would: norms of those are a copy slower."""
    pipe, scattered = tiny(family), []

    def residual(unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        scattered.extend([unit] * (not h[0].is_contiguous()))
        return plain(unit, h, branch, gate)

    with attach(denoiser_in(pipe)).using(residual):
        draw(pipe, family, steps=4)
    assert not scattered


class Elsewhere(TorchDispatchMode):
    """Notes what is done with a tensor that lies on the CPU, or reads a value."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, result))
        if any(isinstance(leaf, Tensor) and leaf.device.type == "cpu" for leaf in leaves) or "scalar" in str(function):
            self.seen.append(str(function))
        return result


@pytest.mark.parametrize("family", ["dit", *TRANSFORMERS])
def test_an_evaluation_stays_on_its_device_so_that_it_can_be_recorded(family: str) -> None:
    """A CUDA graph records no copy from the host, and nothing that waits for a value."""
    denoiser = denoiser_in(tiny(family)).to("meta")
    with attach(denoiser).using(plain), Elsewhere() as elsewhere, torch.inference_mode():
        denoiser(**evaluation(family), return_dict=False)
    assert not elsewhere.seen


# ------------------------------------------------------------------------------------------------- whatever is drawn


def test_other_steps_batches_sizes_and_guidance_follow_one_another(pipe: DiffusionPipeline) -> None:
    calls: list[dict[str, Any]] = [{}, {"steps": 20}, {"batch": 2}, {"height": 16, "width": 8}, {"guidance_scale": 0.0}]
    alone = []
    for call in calls:
        with tenuto.accelerated(pipe):
            alone.append(draw(pipe, "sd1", **call))
    with tenuto.accelerated(pipe):
        for call, expected in zip(calls + calls, alone + alone, strict=True):
            assert torch.equal(draw(pipe, "sd1", **call), expected), call
        assert set(pipe._tenuto.denoisers[0]._schedules) == {12, 20}


def test_a_second_order_solver_is_counted_by_evaluations(pipe: DiffusionPipeline) -> None:
    pipe.scheduler = HeunDiscreteScheduler(**BETAS)
    full = draw(pipe, "sd1", steps=9)
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "sd1", steps=9), full)
        assert tenuto.summary(pipe).evaluations == 17
    with tenuto.accelerated(pipe, every=4, opening=False, closing=0):
        draw(pipe, "sd1", steps=9)
        summary = tenuto.summary(pipe)
    assert [step.work for step in summary.per_step] == [float(i % 4 == 0) for i in range(17)]


@pytest.mark.parametrize(
    ("kind", "call", "corrected"),
    [
        (DDIMScheduler, {}, True),
        (DDIMScheduler, {"eta": 1.0}, False),  # noise is added at every step
        (DPMSolverMultistepScheduler, {}, False),  # remembers outputs
    ],
)
def test_outputs_are_corrected_where_a_scheduler_adds_them_up(
    pipe: DiffusionPipeline, kind: Any, call: dict[str, Any], corrected: bool
) -> None:
    pipe.scheduler = kind(**BETAS, **({"clip_sample": False} if kind is DDIMScheduler else {}))
    drawn = []
    for correction in (True, False):
        with tenuto.accelerated(pipe, 0.5, correction=correction):
            drawn.append(draw(pipe, "sd1", **call))
    assert torch.equal(*drawn) != corrected


@pytest.mark.parametrize(
    ("kind", "config", "call"),
    [
        (DDIMScheduler, {"clip_sample": False}, {"eta": 1.0}),
        (DDPMScheduler, {}, {}),
        (EulerAncestralDiscreteScheduler, {}, {}),
        (LCMScheduler, {}, {}),
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


class Named(DDIMScheduler):
    """A scheduler that takes nothing but keywords."""

    def set_timesteps(self, *, num_inference_steps: int, device: Any = None) -> None:
        super().set_timesteps(num_inference_steps, device)

    def step(self, *, model_output: Tensor, timestep: Any, sample: Tensor, **options: Any) -> Any:
        return super().step(model_output, timestep, sample, **options)


def test_a_scheduler_called_by_keywords_is_followed(pipe: DiffusionPipeline) -> None:
    """In a loop of one's own, the pipeline's bar says when it begins."""
    tenuto.enable(pipe, every=4, opening=False, closing=0)
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


def test_a_scheduler_exchanged_meanwhile_is_followed_and_a_copied_one_is_free(pipe: DiffusionPipeline) -> None:
    first = pipe.scheduler
    tenuto.enable(pipe, every=4, opening=False, closing=0)
    draw(pipe, "sd1")
    twin = copy.deepcopy(first)
    assert twin.step.__self__ is twin
    pipe.scheduler = HeunDiscreteScheduler(**BETAS)
    draw(pipe, "sd1", steps=9)
    assert tenuto.summary(pipe).evaluations == 17 and tenuto.summary(pipe).computed == 5
    tenuto.disable(pipe)
    assert "step" not in vars(first) and "step" not in vars(pipe.scheduler)


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        (StableDiffusionImg2ImgPipeline, "sd1"),
        (StableDiffusionInpaintPipeline, "sd1"),
        (StableDiffusionXLImg2ImgPipeline, "sdxl"),
    ],
)
def test_pictures_made_from_pictures_take_fewer_steps(kind: Any, family: str) -> None:
    first = tiny(family)
    options = {"requires_safety_checker": False} if family == "sd1" else {}
    parts = {name: value for name, value in first.components.items() if name != "image_encoder"}
    pipe = kind(**parts, **options)
    pipe.set_progress_bar_config(disable=True)
    call: dict[str, Any] = {"image": picture(), "strength": 0.5, "steps": 24}
    if kind is StableDiffusionInpaintPipeline:
        call |= {"mask_image": torch.ones(1, 1, 8, 8), "height": 8, "width": 8}
    full = draw(pipe, family, **call)
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, family, **call), full)
    with tenuto.accelerated(pipe, every=4, opening=False, closing=0):
        draw(pipe, family, **call)
        assert [step.work == 1 for step in tenuto.summary(pipe).per_step] == EVERY_FOURTH
    assert torch.equal(draw(pipe, family, **call), full)


def test_few_steps_run_in_full_and_it_is_said_once(pipe: DiffusionPipeline) -> None:
    full = draw(pipe, "sd1", steps=4)
    with tenuto.accelerated(pipe):
        with pytest.warns(UserWarning, match="only 4 steps"):
            assert torch.equal(draw(pipe, "sd1", steps=4), full)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            assert torch.equal(draw(pipe, "sd1", steps=4), full)
        assert tenuto.summary(pipe).work == 1


def test_a_batch_that_changes_on_the_way_begins_anew(pipe: DiffusionPipeline) -> None:
    """Guidance that is switched off in a callback, as diffusers' guide does it, halves the batch."""

    def off(pipe: Any, step: int, t: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
        if step == 3:
            pipe._guidance_scale = 0.0
            given["prompt_embeds"] = given["prompt_embeds"].chunk(2)[-1]
        return given

    call: dict[str, Any] = {"callback_on_step_end": off, "callback_on_step_end_tensor_inputs": ["prompt_embeds"]}
    full = draw(pipe, "sd1", **call)
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "sd1", **call), full)
    with tenuto.accelerated(pipe, every=4, opening=False, closing=0):
        draw(pipe, "sd1", **call)
        assert [step.work == 1 for step in tenuto.summary(pipe).per_step] == EVERY_FOURTH
        schedule = tenuto.schedule(pipe, steps=12, every=4, opening=False, closing=0)
    with tenuto.accelerated(pipe, schedule=schedule):
        draw(pipe, "sd1", **call)  # what begins anew goes on with the rest of the schedule
        assert [step.work == 1 for step in tenuto.summary(pipe).per_step] == EVERY_FOURTH


def test_guidance_that_skips_layers_for_some_steps_has_a_lane_of_its_own() -> None:
    pipe = tiny("sd3")
    call: dict[str, Any] = {"skip_guidance_layers": [1], "skip_layer_guidance_stop": 0.5, "steps": 16}
    full = draw(pipe, "sd3", **call)
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "sd3", **call), full)
        assert tenuto.summary(pipe).evaluations == 16 + 7
    with tenuto.accelerated(pipe, every=4, opening=False, closing=0):
        assert torch.isfinite(draw(pipe, "sd3", **call)).all()
        assert tenuto.summary(pipe).computed == 4 + 2


# ------------------------------------------------------------------------------------------------ what goes wrong


def test_nonsense_is_refused_and_leaves_nothing_behind(pipe: DiffusionPipeline, tmp_path: Path) -> None:
    before = attributes(pipe)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"budget": 0.0}, "above 0"),
        ({"budget": 0.5, "speedup": 2}, "not both"),
        ({"budgets": 0.5}, "option of no policy"),
        ({"tau": 0.5}, "belongs to the policy lifetimes"),
        ({"policy": "best"}, "The policy is one of"),
        ({"mode": "quick"}, "The mode is one of"),
        ({"mode": "eager"}, "nothing is held"),
        ({"on_change": "ignore"}, "on_change is one of"),
        ({"schedule": str(tmp_path / "none.json")}, "none.json"),
        ({"schedule": "owner/name", "budget": 0.5}, "says everything"),
        ({"schedule": tenuto.schedule(tiny("sdxl"), 12)}, "not for this UNet2DConditionModel"),
    ]
    for options, message in refused:
        with pytest.raises(TenutoError, match=message):
            tenuto.enable(pipe, **options)
        assert attributes(pipe) == before, options
    with pytest.raises(UsageError, match="is not enabled"):
        tenuto.disable(pipe)
    with pytest.raises(UsageError, match="is not enabled"):
        tenuto.summary(pipe)
    with pytest.raises(UsageError, match="this is a Conv2d"):
        tenuto.enable(pipe.unet.conv_in)  # type: ignore[arg-type]
    tenuto.enable(pipe)
    with pytest.raises(UsageError, match="enabled already"):
        tenuto.enable(pipe)
    tenuto.disable(pipe)
    pipe.unet = nn.Identity()
    with pytest.raises(TenutoError, match="A Identity cannot be brought"):
        tenuto.enable(pipe, keep="branch")


def test_an_exception_leaves_the_pipeline_usable(pipe: DiffusionPipeline) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    tenuto.enable(pipe, every=4, opening=False, closing=0)
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

    with tenuto.accelerated(pipe, every=4, opening=False, closing=0):
        expected = draw(pipe, "sd1")
        draw(pipe, "sd1", seed=1, callback_on_step_end=stop)
        assert tenuto.summary(pipe).evaluations == 6
        assert torch.equal(draw(pipe, "sd1"), expected)


def test_between_generations_the_denoiser_is_as_ever(pipe: DiffusionPipeline) -> None:
    x, words = torch.randn(1, 4, 8, 8), torch.randn(1, 5, 16)
    with torch.no_grad():
        plain = pipe.unet(x, 7, encoder_hidden_states=words).sample
        with tenuto.accelerated(pipe), counted(pipe) as counts:
            draw(pipe, "sd1")
            before = Counter(counts)
            assert all(torch.equal(pipe.unet(x, 7, encoder_hidden_states=words).sample, plain) for _ in range(3))
            assert set((counts - before).values()) == {3}


# ----------------------------------------------------------------------------------------------- schedules of one's own


def test_a_schedule_or_its_file_says_everything(pipe: DiffusionPipeline, tmp_path: Path) -> None:
    schedule = tenuto.schedule(pipe, 12, every=4, opening=False, closing=0)
    schedule.save(tmp_path / "schedule.json")
    drawn = []
    for given in (schedule, str(tmp_path / "schedule.json"), tmp_path / "schedule.json"):
        with tenuto.accelerated(pipe, schedule=given):
            drawn.append(draw(pipe, "sd1"))
            with pytest.raises(ScheduleError, match="12 steps, but the pipeline evaluates its denoiser at 20"):
                draw(pipe, "sd1", steps=20)
            assert torch.equal(draw(pipe, "sd1"), drawn[0])


def test_a_hub_id_is_asked_of_the_hub(pipe: DiffusionPipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    schedule = tenuto.schedule(pipe, 12)

    def pull(repository: str, directory: str) -> None:
        assert repository == "owner/name"
        schedule.save(Path(directory) / "schedule.json")

    monkeypatch.setitem(sys.modules, "tenuto.hub", types.SimpleNamespace(pull=pull))
    tenuto.enable(pipe, schedule="owner/name")
    draw(pipe, "sd1")
    assert tenuto.summary(pipe).work == schedule.budget


def test_a_speed_up_instead_of_a_budget(pipe: DiffusionPipeline) -> None:
    with tenuto.accelerated(pipe, speedup=4):
        draw(pipe, "sd1")
        assert tenuto.summary(pipe).work == 0.25


# --------------------------------------------------------------------------------------------------------- summary


def test_a_summary_is_for_reading_and_for_programs(pipe: DiffusionPipeline) -> None:
    tenuto.enable(pipe, every=4, opening=False, closing=0)
    assert "nothing was generated yet" in str(tenuto.summary(pipe))
    draw(pipe, "sd1")
    summary = tenuto.summary(pipe)
    assert (summary.steps, summary.evaluations, summary.computed) == (12, 12, 3)
    assert summary.work == summary.flop_work == 0.25
    assert summary.cache_bytes == 3 * 2 * 4 * 8 * 8 * 4 - 2 * 4 * 8 * 8 * 4  # the last two outputs, of two samples each
    assert summary.seconds == sum(step.seconds for step in summary.per_step) > 0
    held = [step.seconds for step in summary.per_step if step.work == 0]
    assert max(held) < min(step.seconds for step in summary.per_step if step.work == 1)
    assert "#...#...#..." in str(summary) and "3 of 12 evaluations" in str(summary)
    record = summary.to_dict()
    assert record["per_denoiser"]["unet"] == {"computed": 3, "asked": 12} and len(record["per_step"]) == 12
    assert (summary.keep, summary.predict, summary.scheduler) == ("output", "linear", "DDIMScheduler")
    assert summary.corrected and "corrected; 4,096 bytes" in str(summary)


def test_a_summary_says_why_nothing_was_corrected(pipe: DiffusionPipeline) -> None:
    pipe.scheduler = DPMSolverMultistepScheduler(**BETAS)
    with tenuto.accelerated(pipe, every=4):
        draw(pipe, "sd1")
        summary = tenuto.summary(pipe)
    assert not summary.corrected and "DPMSolverMultistepScheduler remembers" in summary.uncorrected_because
    assert f"not corrected: {summary.uncorrected_because}" in str(summary)


def test_a_denoiser_that_nobody_knows_is_served(pipe: DiffusionPipeline) -> None:
    class Other(nn.Module):
        """A denoiser of a class of one's own."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.config, self.calls = inner, inner.config, 0

        dtype, device = torch.float32, torch.device("cpu")

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return self.inner(*args, **kwargs)

    full = draw(pipe, "sd1")
    pipe.unet = Other(pipe.unet)
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "sd1"), full)
    pipe.unet.calls = 0
    with tenuto.accelerated(pipe, 0.25):
        draw(pipe, "sd1")
    assert pipe.unet.calls == 3
    with tenuto.accelerated(pipe, schedule=tenuto.schedule(pipe, 12, every=4)):
        draw(pipe, "sd1")


class Reads(TorchDispatchMode):
    """Counts how often a tensor's value is asked for, which waits for a device, once the denoiser was called."""

    def __init__(self, denoiser: nn.Module) -> None:
        super().__init__()
        self.count = 0
        self.begun = False
        denoiser.register_forward_pre_hook(self.begin)

    def begin(self, *call: Any) -> None:
        self.begun = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += self.begun and func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", ["sd1", "flux"])
def test_no_value_is_read_from_the_device_to_count_steps(family: str) -> None:
    pipe = tiny(family)
    with Reads(denoiser_in(pipe)) as plain:
        draw(pipe, family)
    for budget in (1.0, 0.5):
        with Reads(denoiser_in(pipe)) as enabled, tenuto.accelerated(pipe, budget):
            draw(pipe, family)
        assert enabled.count == plain.count


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["sdxl", "flux", "wan"])
def test_on_a_gpu_graphs_are_recorded_and_recorded_anew_when_weights_change(family: str) -> None:
    pipe = tiny(family).to("cuda")
    full = draw(pipe, family)
    tenuto.enable(pipe, 1.0)
    for _ in range(2):
        torch.testing.assert_close(draw(pipe, family), full, atol=1e-3, rtol=0)
    summary = tenuto.summary(pipe)
    assert summary.graphs > 0 and summary.seconds > 0
    with torch.no_grad():
        for parameter in denoiser_in(pipe).parameters():
            parameter.mul_(0.5)
    changed = draw(pipe, family)
    tenuto.disable(pipe)
    torch.testing.assert_close(draw(pipe, family), changed, atol=1e-3, rtol=0)
    assert not torch.allclose(changed, full, atol=1e-3)
