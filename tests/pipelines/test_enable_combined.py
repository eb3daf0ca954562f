"""Pipelines made faster in one call, and what people combine that with: adapters, offloading, quantised weights, …"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    ControlNetModel,
    DiffusionPipeline,
    StableDiffusionControlNetPipeline,
    StableDiffusionImg2ImgPipeline,
)
from torch import Tensor, nn

import tenuto
from tenuto.errors import CheckpointError, ScheduleError, UsageError
from tenuto.models.diffusers import live_weights
from tenuto_lab.seam import unit_denoiser
from tests.helpers.pipelines import (
    EVERY_FOURTH,
    QUIET,
    computed_steps,
    counted,
    denoiser_in,
    draw,
    picture,
    tiny,
    two_experts,
)

pytestmark = QUIET


@pytest.fixture
def pipe() -> DiffusionPipeline:
    return tiny("sd1")


def test_adapters_loaded_rescaled_fused_and_unloaded_are_noticed() -> None:
    LoraConfig = pytest.importorskip("peft").LoraConfig

    pipe = tiny("sdxl")
    twin = tiny("sdxl")
    tenuto.enable(pipe, policy="lifetimes", budget=0.6)
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
        with tenuto.accelerated(twin, policy="lifetimes", budget=0.6):
            torch.testing.assert_close(seen[-1], draw(twin, "sdxl"))
        tenuto.disable(refusing)
        tenuto.enable(refusing, on_change="refuse")
        draw(refusing, "sdxl")
    scores = pipe._tenuto.denoisers[0].subject
    assert scores.fingerprint == tenuto.score(twin).fingerprint != tenuto.score(tiny("sdxl")).fingerprint
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    torch.testing.assert_close(seen[2], seen[3], atol=1e-4, rtol=0)  # fused is the same
    tenuto.disable(pipe)


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
@pytest.mark.parametrize("keep", ["output", "branch"])
def test_channels_last_changes_nothing_at_a_budget_of_one(family: str, keep: Any) -> None:
    pipe = tiny(family)
    pipe.unet.to(memory_format=torch.channels_last)
    full = draw(pipe, family)
    with tenuto.accelerated(pipe, 1.0, keep=keep):
        assert torch.equal(draw(pipe, family), full)


def test_with_layerwise_casting_outputs_are_held_and_single_units_refused() -> None:
    pipe = tiny("sdxl")
    pipe.unet.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)
    full = draw(pipe, "sdxl")
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "sdxl"), full)
    with tenuto.accelerated(pipe, evaluations=8):
        assert draw(pipe, "sdxl").isfinite().all() and tenuto.summary(pipe).computed_steps == 8
    with pytest.raises(UsageError, match="casting.* so only its output can be held"):
        tenuto.enable(pipe, keep="branch")


@pytest.mark.parametrize("family", ["pixart", "wan"])
def test_an_old_pipeline_draws_what_a_fresh_one_draws_whatever_came_before(family: str) -> None:
    how: dict[str, Any] = {"keep": "update", "predict": "constant", "every": 4}
    fresh = {}
    for steps, seed in ((12, 0), (8, 1)):
        with tenuto.accelerated(pipe := tiny(family), **how):
            fresh[steps, seed] = draw(pipe, family, steps=steps, seed=seed)
    tenuto.enable(pipe := tiny(family), **how)
    for steps, seed in ((12, 0), (8, 1), (12, 0), (12, 0), (8, 1)):
        assert torch.equal(draw(pipe, family, steps=steps, seed=seed), fresh[steps, seed])


def test_a_ranked_policy_notices_writes_that_torch_does_not_count(pipe: Any) -> None:
    weight = pipe.unet.mid_block.attentions[0].transformer_blocks[0].attn1.to_q.weight
    tenuto.enable(pipe, policy="lifetimes", budget=0.6)
    draw(pipe, "sd1")
    before = pipe._tenuto.denoisers[0].subject.fingerprint
    weight.data[-1, -1] += 1
    draw(pipe, "sd1")
    assert pipe._tenuto.denoisers[0].subject.fingerprint != before


def test_the_default_reads_no_weight_when_a_generation_begins(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_weights, "_checksum", lambda _: pytest.fail("the weights were read"))
    tenuto.enable(pipe)
    draw(pipe, "sd1")


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
    with tenuto.accelerated(pipe, every=4), counted(pipe) as counts:
        draw(pipe, "dit")
        assert tenuto.summary(pipe).computed == 3 and set(counts.values()) <= {0, 3}
    with pytest.raises(UsageError, match="only its output can be held"):
        tenuto.enable(pipe, keep="branch")
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


def test_graphs_record_what_torch_compiled_unless_it_has_graphs_of_its_own() -> None:
    def mode_of(**how: Any) -> str:
        pipe = tiny("dit")
        pipe.transformer.transformer_blocks[0].compile(**how)
        with tenuto.accelerated(pipe):
            (denoiser,) = pipe._tenuto.denoisers
            return denoiser.evaluator()._executor.mode

    assert mode_of() == mode_of(mode="max-autotune-no-cudagraphs") == "auto"
    assert mode_of(mode="reduce-overhead") == mode_of(backend="eager") == "skip"
    pipe = tiny("dit")
    pipe.transformer = torch.compile(pipe.transformer, mode="max-autotune")
    with pytest.raises(UsageError, match="leave mode and compiled out"):
        tenuto.enable(pipe, mode="jagged")


@pytest.mark.parametrize("first", ["enabled", "offloaded"])
@pytest.mark.parametrize("family", ["sd1", "wan"])
def test_offloading_before_and_after(family: str, first: str) -> None:
    """Its hooks wrap the denoiser's forward, and are taken off and put on again after each generation."""
    pipe = tiny(family)
    with tenuto.accelerated(pipe, evaluations=3):
        expected = draw(pipe, family)
    blocks = {name: set(vars(part)) for name, part in denoiser_in(pipe).named_modules() if name}
    if first == "enabled":
        tenuto.enable(pipe, evaluations=3)
    pipe.enable_model_cpu_offload(device="cpu")
    if first == "offloaded":
        tenuto.enable(pipe, evaluations=3)
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
        tenuto.enable(pipe, keep="branch")


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
    assert pipe._tenuto.denoisers[0].subject.units == tenuto.score(rounded).units


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


def controlled(pipe: DiffusionPipeline) -> Any:
    """The same pipeline with a ControlNet beside its denoiser."""
    torch.manual_seed(0)
    control = ControlNetModel.from_unet(pipe.unet, conditioning_embedding_out_channels=(4,)).eval()
    for block in (*control.controlnet_down_blocks, control.controlnet_mid_block):
        nn.init.normal_(block.weight, std=0.3)  # which begin as zeros
    nn.init.normal_(control.controlnet_cond_embedding.conv_out.weight, std=0.3)
    parts = {name: value for name, value in pipe.components.items() if name != "image_encoder"}
    guided = StableDiffusionControlNetPipeline(**parts, controlnet=control, requires_safety_checker=False)
    guided.set_progress_bar_config(disable=True)
    return guided


def test_a_controlnet_is_read_at_every_step_that_is_computed(pipe: DiffusionPipeline) -> None:
    guided, call = controlled(pipe), {"image": picture(), "height": 8, "width": 8}
    full = draw(guided, "sd1", **call)
    assert not torch.equal(full, draw(pipe, "sd1"))
    with tenuto.accelerated(guided, 1.0):
        assert torch.equal(draw(guided, "sd1", **call), full)
    for keep in ("output", "branch"):
        with tenuto.accelerated(guided, every=4, keep=keep):
            first = draw(guided, "sd1", **call)
            other = draw(guided, "sd1", **{**call, "image": picture().flip(-1)})
            assert [step.work == 1 for step in tenuto.summary(guided).per_step] == EVERY_FOURTH
        assert not torch.equal(first, other)


def test_a_controlnet_is_evaluated_only_where_the_denoiser_is(pipe: DiffusionPipeline) -> None:
    """It costs about a third of an evaluation, and at held steps nobody reads what it gives."""
    guided, call = controlled(pipe), {"image": picture(), "height": 8, "width": 8}
    counts: dict[str, list[int]] = {"unet": [], "controlnet": []}
    for name, seen in counts.items():
        getattr(guided, name).conv_in.register_forward_hook(lambda *_, seen=seen: seen.append(1))
    with tenuto.accelerated(guided, evaluations=4):
        draw(guided, "sd1", **call)
        summary = tenuto.summary(guided)
    assert {name: len(seen) for name, seen in counts.items()} == {"unet": 4, "controlnet": 4}
    assert {name: one.computed for name, one in summary.per_denoiser.items()} == {"unet": 4, "controlnet": 4}
    assert len([step for step in summary.per_step if step.work == 1]) == 4
    with tenuto.accelerated(guided, evaluations=4):  # guidance that ends early ends it early, too
        for seen in counts.values():
            seen.clear()
        assert draw(guided, "sd1", **call, control_guidance_end=0.5).isfinite().all()


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
    with tenuto.accelerated(pipe, every=4, keep="branch"):
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
        with pytest.raises(UsageError, match="in another pipeline"):
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


def test_of_two_experts_each_is_held_for_its_own_steps() -> None:
    pipe = two_experts()
    full = draw(pipe, "wan", steps=20)
    with tenuto.accelerated(pipe, 1.0):
        assert torch.equal(draw(pipe, "wan", steps=20), full)
    with tenuto.accelerated(pipe, every=4):
        draw(pipe, "wan", steps=20)
        summary = tenuto.summary(pipe)
    first, second = summary.per_denoiser["transformer"], summary.per_denoiser["transformer_2"]
    assert first.asked + second.asked == 2 * 20 and min(first.asked, second.asked) > 2
    assert [one.computed for one in (first, second)] == [2 * -(-one.asked // 2 // 4) for one in (first, second)]
    assert np.mean([step.work for step in summary.per_step]) < 0.4


def test_the_first_step_of_the_second_expert_is_computed() -> None:
    """Nothing that one expert gave is predicted from for the other."""
    pipe = two_experts()
    for options in ({"evaluations": 6}, {"budget": 0.4}, {"every": 7}):
        with tenuto.accelerated(pipe, **options):
            assert draw(pipe, "wan", steps=20).isfinite().all()
            summary, evaluations = tenuto.summary(pipe), pipe._tenuto.last.evaluations
        began = min(one.step for one in evaluations if one.denoiser == "transformer_2")
        assert summary.per_step[began].work == 1 and summary.per_step[0].work == 1
        assert not summary.in_full_because and summary.work < 1
        for name in ("transformer", "transformer_2"):
            assert 0 < summary.per_denoiser[name].computed < summary.per_denoiser[name].asked, (options, name)


@pytest.mark.parametrize("options", [{}, {"keep": "branch"}])
@pytest.mark.parametrize("asked", [7, 12])
def test_two_experts_together_take_as_many_evaluations_as_were_asked_for(asked: int, options: dict[str, Any]) -> None:
    pipe = two_experts()
    with tenuto.accelerated(pipe, evaluations=asked, **options):
        draw(pipe, "wan", steps=30)
        assert len(computed_steps(pipe)) == asked


def test_the_units_of_each_network_are_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing them walks through all blocks, and a network beside the denoiser has no units to list."""
    listed: list[str] = []
    real = unit_denoiser.units_in
    monkeypatch.setattr(unit_denoiser, "units_in", lambda one: listed.append(type(one).__name__) or real(one))
    with tenuto.accelerated(two_experts(), every=4, keep="branch"):
        assert listed == ["WanTransformer3DModel"] * 2
