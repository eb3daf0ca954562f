"""Pipelines made faster in one call: what they draw, what is computed for it, and what they are left as."""

import copy
import sys
import types
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    ControlNetModel,
    DDIMScheduler,
    DiffusionPipeline,
    HeunDiscreteScheduler,
    StableDiffusionControlNetPipeline,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionXLImg2ImgPipeline,
)
from pipelines import BETAS, FAMILIES, TRANSFORMERS, draw, evaluation, tiny
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tenuto
from tenuto.errors import CheckpointError, ScheduleError, TenutoError, UsageError
from tenuto.integrations.blocks import sites_of
from tenuto.integrations.diffusers import attach, names_in, uncompiled
from tenuto.residual import Branch, plain

pytestmark = [
    pytest.mark.filterwarnings("ignore:Only .* of .* steps compute everything"),  # these generations are short
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # diffusers', of its own configs
]
EVERY_FOURTH = [True, False, False, False] * 3


def denoiser_in(pipe: DiffusionPipeline) -> Any:
    return getattr(pipe, names_in(pipe)[0])


@contextmanager
def counted(pipe: DiffusionPipeline) -> Iterator[Counter[str]]:
    """How often the last matrix of each branch is used."""
    module, counts = uncompiled(denoiser_in(pipe)), Counter[str]()
    handles = [
        module.get_submodule(unit.tensors()[-1].removesuffix(".weight")).register_forward_hook(
            lambda *_, name=unit.name: counts.update([name])
        )
        for site in sites_of(module)
        for unit in site.units
    ]
    yield counts
    for handle in handles:
        handle.remove()


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
    assert set(counts.values()) == {3 * calls} and len(counts) == len(tenuto.summary(pipe).per_unit)
    assert torch.equal(draw(pipe, family), quarter) and torch.isfinite(quarter).all()
    assert not torch.equal(quarter, full)
    tenuto.disable(pipe)
    assert attributes(pipe) == before
    assert torch.equal(draw(pipe, family), full)


@pytest.mark.parametrize("family", FAMILIES)
def test_units_can_be_held_instead_of_the_output(family: str) -> None:
    pipe = tiny(family)
    full = draw(pipe, family, steps=8)
    for hold in ("update", "branch"):
        with tenuto.accelerated(pipe, every=2, closing=0, opening=False, hold=hold), counted(pipe) as counts:
            held = draw(pipe, family, steps=8)
            assert tenuto.summary(pipe).work == 0.5
        once = 2 if family == "wan" else 1
        assert set(counts.values()) == {5 * once}, hold  # and once when the network is looked at
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


def picture(side: int = 8) -> Tensor:
    return torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(1))


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
        with pytest.warns(UserWarning, match="12 evaluations .* 8 are left"):
            draw(pipe, "sd1", **call)
        assert [step.work == 1 for step in tenuto.summary(pipe).per_step] == [*EVERY_FOURTH[:4], *[True] * 8]


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
        tenuto.enable(pipe)


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
    assert not pipe._tenuto._runs  # the denoiser is nobody's in between
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
    monkeypatch.setitem(sys.modules, "tenuto.integrations.hub", None)
    with pytest.raises(UsageError, match="no schedule file 'owner/name'"):
        tenuto.enable(pipe, schedule="owner/name")

    def pull(repository: str, directory: str) -> None:
        assert repository == "owner/name"
        schedule.save(Path(directory) / "schedule.json")

    monkeypatch.setitem(sys.modules, "tenuto.integrations.hub", types.SimpleNamespace(pull=pull))
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
    assert record["per_unit"]["mid_block.resnets.0"]["computed"] == 3 and len(record["per_step"]) == 12


class Reads(TorchDispatchMode):
    """Counts how often a tensor's value is asked for, which waits for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", ["sd1", "flux"])
def test_no_value_is_read_from_the_device_to_count_steps(family: str) -> None:
    pipe = tiny(family)
    with Reads() as plain:
        draw(pipe, family)
    with tenuto.accelerated(pipe, 1.0), Reads() as enabled:
        draw(pipe, family)
    assert enabled.count == plain.count


# ------------------------------------------------------------------------------------------ what people combine it with


def test_adapters_loaded_rescaled_fused_and_unloaded_are_noticed() -> None:
    LoraConfig = pytest.importorskip("peft").LoraConfig

    pipe = tiny("sdxl")
    twin = tiny("sdxl")
    tenuto.enable(pipe, policy="anchors", every=4, share=0.5, hold="branch")
    refusing = tiny("sdxl")
    tenuto.enable(refusing, on_change="refuse")

    def everywhere(change: Any) -> None:
        for one in (pipe, twin, refusing):
            torch.manual_seed(1)
            change(one)

    def load(one: Any) -> None:
        one.unet.add_adapter(LoraConfig(r=2, init_lora_weights=False, target_modules=["to_q", "to_out.0"]), "style")

    seen = [draw(pipe, "sdxl")]
    changes = [
        load,
        lambda one: one.set_adapters("style", 0.5),
        lambda one: one.fuse_lora(),
        lambda one: one.unload_lora_weights(),
    ]
    for change in changes:
        everywhere(change)
        with pytest.raises(ScheduleError, match="weights of the unet were changed"):
            draw(refusing, "sdxl")
        seen.append(draw(pipe, "sdxl"))
        with tenuto.accelerated(twin, policy="anchors", every=4, share=0.5, hold="branch"):
            torch.testing.assert_close(seen[-1], draw(twin, "sdxl"))
        tenuto.disable(refusing)
        tenuto.enable(refusing, on_change="refuse")
        draw(refusing, "sdxl")
    scores = pipe._tenuto.denoisers[0].scores
    assert scores.fingerprint == tenuto.score(twin).fingerprint != tenuto.score(tiny("sdxl")).fingerprint
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    torch.testing.assert_close(seen[2], seen[3], atol=1e-4, rtol=0)  # fused is the same
    tenuto.disable(pipe)


def test_a_scored_adapter_is_part_of_the_matrix() -> None:
    LoraConfig = pytest.importorskip("peft").LoraConfig

    pipe = tiny("sd1")
    path = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
    pipe.unet.add_adapter(LoraConfig(r=2, init_lora_weights=False, target_modules=[path]), "style")
    layer = pipe.unet.get_submodule(path)
    apart = tenuto.score(pipe)
    merged = tiny("sd1")
    weight = merged.unet.get_submodule(path).weight
    with torch.no_grad():
        weight.copy_(layer.base_layer.weight + layer.get_delta_weight("style"))
    assert [unit.score for unit in apart.units] == pytest.approx([unit.score for unit in tenuto.score(merged).units])
    assert apart.fingerprint != tenuto.score(tiny("sd1")).fingerprint


def test_a_compiled_denoiser_is_held_by_its_output() -> None:
    pipe = tiny("dit")
    full = draw(pipe, "dit")
    plain = pipe.transformer
    pipe.transformer = torch.compile(plain, backend="eager")
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "dit"), full)
    with tenuto.accelerated(pipe, every=4, opening=False, closing=0), counted(pipe) as counts:
        draw(pipe, "dit")
        assert tenuto.summary(pipe).computed == 3 and set(counts.values()) <= {0, 3}
    with pytest.raises(UsageError, match="only its output can be held"):
        tenuto.enable(pipe, hold="branch")
    pipe.transformer = plain
    tenuto.enable(pipe)
    pipe.transformer = torch.compile(plain, backend="eager")
    with pytest.raises(UsageError, match="exchanged or compiled after"):
        draw(pipe, "dit")
    pipe.transformer = plain
    plain.transformer_blocks[0].compile(backend="eager")
    with pytest.raises(UsageError, match="exchanged or compiled after"):
        draw(pipe, "dit")
    plain.transformer_blocks[0]._compiled_call_impl = None
    draw(pipe, "dit")
    plain.compile(backend="eager")
    with pytest.raises(UsageError, match="exchanged or compiled after"):
        draw(pipe, "dit")
    tenuto.disable(pipe)
    assert vars(plain)["_compiled_call_impl"] is not None
    with tenuto.accelerated(pipe):
        draw(pipe, "dit")


@pytest.mark.parametrize("first", ["enabled", "offloaded"])
@pytest.mark.parametrize("family", ["sd1", "wan"])
def test_offloading_before_and_after(family: str, first: str) -> None:
    """Its hooks wrap the denoiser's forward, and are taken off and put on again after each generation."""
    pipe = tiny(family)
    with tenuto.accelerated(pipe):
        expected = draw(pipe, family)
    blocks = {name: set(vars(part)) for name, part in denoiser_in(pipe).named_modules() if name}
    if first == "enabled":
        tenuto.enable(pipe)
    pipe.enable_model_cpu_offload(device="cpu")
    if first == "offloaded":
        tenuto.enable(pipe)
    for _ in range(3):
        assert torch.equal(draw(pipe, family), expected)
        assert tenuto.summary(pipe).work == 0.25
    tenuto.disable(pipe)
    draw(pipe, family)
    pipe.remove_all_hooks()
    assert "_compiled_call_impl" not in vars(denoiser_in(pipe))
    assert {name: set(vars(part)) for name, part in denoiser_in(pipe).named_modules() if name} == blocks


@pytest.mark.parametrize("first", ["enabled", "offloaded"])
@pytest.mark.parametrize("family", ["sd1", "wan"])
def test_sequential_offloading_hooks_every_layer(family: str, first: str) -> None:
    cpu_offload = pytest.importorskip("accelerate").cpu_offload

    pipe = tiny(family)
    full = draw(pipe, family)
    with tenuto.accelerated(pipe):
        expected = draw(pipe, family)
    if first == "enabled":
        tenuto.enable(pipe)
    for part in (denoiser_in(pipe), pipe.vae):  # as enable_sequential_cpu_offload does, which wants a GPU
        cpu_offload(part, torch.device("cpu"), offload_buffers=True, state_dict=dict(part.state_dict()))
    if first == "offloaded":
        tenuto.enable(pipe)
    for _ in range(2):
        assert torch.equal(draw(pipe, family), expected)
    tenuto.disable(pipe)
    assert torch.equal(draw(pipe, family), full)
    assert any(hasattr(part, "_hf_hook") for part in denoiser_in(pipe).modules())
    with pytest.raises(CheckpointError, match="offloaded and holds no values"):
        tenuto.enable(pipe, policy="lifetimes")


def test_blocks_that_diffusers_offloads_in_groups_are_left_to_it() -> None:
    pipe = tiny("wan")
    with tenuto.accelerated(pipe):
        expected = draw(pipe, "wan")
    on = torch.device("cpu")
    pipe.transformer.enable_group_offload(on, on, offload_type="block_level", num_blocks_per_group=1)
    with tenuto.accelerated(pipe):
        assert torch.equal(draw(pipe, "wan"), expected)
    with pytest.raises(UsageError, match="hooks of diffusers on its blocks"):
        tenuto.enable(pipe, hold="branch")


def test_tiled_decoding_goes_on_as_before(pipe: DiffusionPipeline) -> None:
    pipe.vae.tile_sample_min_size = 4
    pipe.vae.tile_latent_min_size = 4
    pipe.vae.enable_tiling()
    full = draw(pipe, "sd1")
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "sd1"), full)


class Quantised(nn.Parameter):
    """Stands for a tensor that a quantising library made: small numbers and a scale."""

    scale: Tensor

    def dequantize(self) -> Tensor:
        return self.data.float() * self.scale


def quantised(layer: nn.Linear, kind: type = Quantised) -> Tensor:
    scale = layer.weight.detach().abs().amax() / 127
    weight = kind((layer.weight.detach() / scale).round().to(torch.int8), requires_grad=False)
    weight.scale = scale
    layer._parameters["weight"] = weight
    return weight.data.float() * scale


def test_quantised_weights_are_scored_dequantised() -> None:
    path = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
    pipe, rounded = tiny("sd1"), tiny("sd1")
    values = quantised(pipe.unet.get_submodule(path))
    rounded.unet.get_submodule(path).weight.data.copy_(values)
    assert tenuto.score(pipe).units == tenuto.score(rounded).units
    tenuto.enable(pipe, policy="lifetimes", tau=0.5)  # and what it decides, it decides from these
    assert pipe._tenuto.denoisers[0].scores.units == tenuto.score(rounded).units


class Params4bit(nn.Parameter):
    """Called as bitsandbytes calls its own."""


def test_what_nobody_can_dequantise_is_named() -> None:
    path = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
    pipe = tiny("sd1")
    quantised(pipe.unet.get_submodule(path), Params4bit)
    if "bitsandbytes" not in sys.modules:
        with pytest.raises(CheckpointError, match=rf"{path}.weight was quantised by bitsandbytes, which is not"):
            tenuto.score(pipe)
    pipe.unet.get_submodule(path)._parameters["weight"] = nn.Parameter(
        torch.ones(16, 16, dtype=torch.int8), requires_grad=False
    )
    with pytest.raises(CheckpointError, match="int8 numbers as a Parameter"):
        tenuto.score(pipe)
    tenuto.enable(pipe)  # the default asks for no score


def test_a_controlnet_is_read_at_every_step_that_is_computed(pipe: DiffusionPipeline) -> None:
    torch.manual_seed(0)
    control = ControlNetModel.from_unet(pipe.unet, conditioning_embedding_out_channels=(4,)).eval()
    for block in (*control.controlnet_down_blocks, control.controlnet_mid_block):
        nn.init.normal_(block.weight, std=0.3)  # which begin as zeros
    nn.init.normal_(control.controlnet_cond_embedding.conv_out.weight, std=0.3)
    parts = {name: value for name, value in pipe.components.items() if name != "image_encoder"}
    guided = StableDiffusionControlNetPipeline(**parts, controlnet=control, requires_safety_checker=False)
    guided.set_progress_bar_config(disable=True)
    call: dict[str, Any] = {"image": picture(), "height": 8, "width": 8}
    full = draw(guided, "sd1", **call)
    assert not torch.equal(full, draw(pipe, "sd1"))
    with tenuto.accelerated(guided, 1.0):
        assert torch.equal(draw(guided, "sd1", **call), full)
    for hold in ("output", "branch"):
        with tenuto.accelerated(guided, every=4, opening=False, closing=0, hold=hold):
            first = draw(guided, "sd1", **call)
            other = draw(guided, "sd1", **{**call, "image": picture().flip(-1)})
            assert [step.work == 1 for step in tenuto.summary(guided).per_step] == EVERY_FOURTH
        assert not torch.equal(first, other)


def test_an_ip_adapter_of_flux_is_live() -> None:
    from diffusers.models.transformers.transformer_flux import FluxIPAdapterAttnProcessor

    pipe = tiny("flux")
    torch.manual_seed(0)
    for block in pipe.transformer.transformer_blocks:
        block.attn.set_processor(FluxIPAdapterAttnProcessor(hidden_size=32, cross_attention_dim=12))
    call = {"joint_attention_kwargs": {"ip_hidden_states": [torch.randn(1, 4, 12)]}}
    full = draw(pipe, "flux", **call)
    assert not torch.equal(full, draw(tiny("flux"), "flux"))
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "flux", **call), full)
    with tenuto.accelerated(pipe, every=4, opening=False, closing=0, hold="branch"):
        first = draw(pipe, "flux", **call)
        call["joint_attention_kwargs"]["ip_hidden_states"][0] *= -1
        assert not torch.equal(draw(pipe, "flux", **call), first)


def test_two_pipelines_may_share_a_denoiser_and_one_of_them_is_enabled(pipe: DiffusionPipeline) -> None:
    parts = {name: value for name, value in pipe.components.items() if name != "image_encoder"}
    other = StableDiffusionImg2ImgPipeline(**parts, requires_safety_checker=False)
    other.set_progress_bar_config(disable=True)
    call: dict[str, Any] = {"image": picture(), "strength": 0.5, "steps": 24}
    full = draw(other, "sd1", **call)
    with tenuto.accelerated(pipe):
        expected = draw(pipe, "sd1")
        assert torch.equal(draw(other, "sd1", **call), full)  # as ever
        assert torch.equal(draw(pipe, "sd1"), expected)
        with pytest.raises(UsageError, match="shared with another pipeline"):
            tenuto.enable(other)
    with tenuto.accelerated(other):
        draw(other, "sd1", **call)


def test_two_threads_draw_each_its_own_picture(pipe: DiffusionPipeline) -> None:
    """Of one pipeline, whose solver has no memory of its own."""
    with tenuto.accelerated(pipe):
        alone = [draw(pipe, "sd1", seed=seed) for seed in range(4)]
        with ThreadPoolExecutor(4) as threads:
            together = list(threads.map(lambda seed: draw(pipe, "sd1", seed=seed), range(4)))
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_a_pipeline_with_two_denoisers_runs_both_under_schedules() -> None:
    """Wan 2.2: one for the noisy steps, another for the rest."""
    from pipelines import transformer

    pipe = tiny("wan")
    pipe.register_modules(transformer_2=transformer("wan"))
    pipe.register_to_config(boundary_ratio=0.9)
    full = draw(pipe, "wan", steps=20)
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "wan", steps=20), full)
    with tenuto.accelerated(pipe, every=4, opening=False, closing=0):
        draw(pipe, "wan", steps=20)
        summary = tenuto.summary(pipe)
    asked = {name.split(".")[0]: unit for name, unit in summary.per_unit.items()}
    first, second = asked["transformer"], asked["transformer_2"]
    assert first.asked + second.asked == 2 * 20 and min(first.asked, second.asked) > 2
    assert [one.computed for one in (first, second)] == [2 * -(-one.asked // 2 // 4) for one in (first, second)]
    assert np.mean([step.work for step in summary.per_step]) < 0.4


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
