"""diffusers' denoisers at the seam: what they compute does not change, and what is held is what the schedule says."""

import copy
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DiTPipeline,
    DiTTransformer2DModel,
    EulerDiscreteScheduler,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.resnet import ResnetBlock2D
from safetensors.torch import save_file
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import tenuto
from tenuto.checkpoint import ModuleTensors
from tenuto.errors import CheckpointError, ScheduleError, TenutoError, UsageError
from tenuto.executor import Executor
from tenuto.holding import Unplanned
from tenuto.integrations.blocks import sites_of
from tenuto.integrations.diffusers import attach, scheduled, units_of
from tenuto.integrations.dit_weights import to_diffusers, to_original
from tenuto.models import dit, load, open_model, unet
from tenuto.models.architecture import ConfigError, NoiseLevels
from tenuto.residual import Branch, plain
from tenuto.schedules import Schedule
from tenuto.scores import score_tensors
from tenuto.units import Unit

SDXL = {
    **unet.SDXL_BASE,
    "sample_size": 8,
    "block_out_channels": [8, 16, 24],
    "transformer_layers_per_block": [1, 2, 3],
    "attention_head_dim": [1, 2, 3],
    "norm_num_groups": 4,
    "cross_attention_dim": 16,
    "addition_time_embed_dim": 4,
    "projection_class_embeddings_input_dim": 6 * 4 + 16,
}
SD_1 = {**unet.SD_1, "sample_size": 8, "block_out_channels": [8, 8, 16, 16], "norm_num_groups": 4}
SD_1 |= {"cross_attention_dim": 16, "attention_head_dim": 2}
DIT = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 8, "num_layers": 2}
DIT |= {"sample_size": 8, "norm_eps": 1e-6}


def make(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "dit":
        network = DiTTransformer2DModel(**DIT)
        for name, parameter in network.named_parameters():
            if "norm1.linear" in name:  # gates of order one: a branch must matter
                nn.init.normal_(parameter, std=0.3)
        return network.eval()
    return UNet2DConditionModel(**(SDXL if kind == "sdxl" else SD_1)).eval()


def inputs(kind: str, seed: int = 0, batch: int = 2) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator)

    if kind == "dit":
        return {"hidden_states": normal(4, 8, 8), "timestep": torch.tensor([7] * batch)} | {
            "class_labels": torch.arange(batch)
        }
    call: dict[str, Any] = {"sample": normal(4, 8, 8), "timestep": 7, "encoder_hidden_states": normal(5, 16)}
    if kind == "sdxl":
        time_ids = torch.full((batch, 6), 8.0)
        call["added_cond_kwargs"] = {"text_embeds": normal(16), "time_ids": time_ids}
    return call


@torch.no_grad()
def run(module: nn.Module, call: dict[str, Any]) -> Tensor:
    return module(**call).sample


def make_schedule(units: tuple[Unit, ...], steps: int, every: int = 1, **options: Any) -> Schedule:
    active = np.zeros((len(units), steps), dtype=bool)
    active[:, ::every] = True
    return Schedule(
        units=tuple(unit.name for unit in units),
        active=active,
        flops=tuple(unit.flops for unit in units),
        reuse=options.get("reuse", "hold"),
        hold=options.get("hold", "branch"),
        model="tiny",
        fingerprint="sha256:0",
    )


class CountingResidual:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        self.calls.append(unit)
        return plain(unit, h, branch, gate)


@pytest.fixture
def computed() -> Iterator[Any]:
    """Counts how often the last matrix of each branch is really used, and not on tensors without values."""
    handles = []

    def count(counts: Counter[str], name: str, output: Tensor) -> None:
        if not isinstance(output, FakeTensor):
            counts.update([name])

    def watch(module: nn.Module) -> Counter[str]:
        counts: Counter[str] = Counter()
        modules = dict(module.named_modules())
        for site in sites_of(module):
            for unit in site.units:
                last = unit.tensors()[-1].removesuffix(".weight")
                handles.append(
                    modules[last].register_forward_hook(lambda *given, name=unit.name: count(counts, name, given[-1]))
                )
        return counts

    yield watch
    for handle in handles:
        handle.remove()


# ------------------------------------------------------------------------------------------------------- attaching


@pytest.mark.parametrize("kind", ["sdxl", "sd1", "dit"])
def test_nothing_changes_before_during_and_after(kind: str) -> None:
    network, call = make(kind), inputs(kind)
    before, state = run(network, call), {name: set(vars(m)) for name, m in network.named_modules()}
    attachment = attach(network)
    assert torch.equal(run(network, call), before)
    with attachment.using(plain):
        assert torch.equal(run(network, call), before)
    attachment.detach()
    assert torch.equal(run(network, call), before)
    assert {name: set(vars(m)) for name, m in network.named_modules()} == state


@pytest.mark.parametrize("kind", ["sdxl", "sd1", "dit"])
def test_every_unit_goes_through_the_seam_once_and_in_order(kind: str) -> None:
    network, counting = make(kind), CountingResidual()
    attachment = attach(network)
    with attachment.using(counting):
        run(network, inputs(kind))
    assert counting.calls == [unit.name for unit in attachment.units]
    assert len(set(counting.calls)) == len(counting.calls)


def test_every_residual_block_is_covered() -> None:
    names = {unit.name for unit in attach(make("sdxl")).units}
    network = make("sdxl")
    for path, module in network.named_modules():
        if isinstance(module, ResnetBlock2D) or path.endswith((".attn1", ".attn2", ".ff")):
            assert path in names
    assert len(names) == 3 * (2 * 2 + 2 * 3 + 3 + 3 * 3 + 3 * 2) + 17


def test_masks_and_attention_options_pass_through() -> None:
    network, call = make("sdxl"), inputs("sdxl")
    call["encoder_attention_mask"] = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    call["timestep"] = torch.tensor([3, 900])
    seen: list[Any] = []
    call["cross_attention_kwargs"] = {}
    unmasked = run(network, inputs("sdxl") | {"timestep": call["timestep"]})
    before = run(network, call)
    assert not torch.equal(before, unmasked)
    attachment = attach(network)
    first = network.down_blocks[1].attentions[0].transformer_blocks[0]
    handle = first.attn2.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    assert torch.equal(run(network, call), before)
    handle.remove()
    assert seen[0]["attention_mask"].shape == (2, 1, 5)
    attachment.detach()


def test_chunked_feed_forward_and_scaled_outputs_are_honoured() -> None:
    torch.manual_seed(0)
    network = UNet2DConditionModel(**SD_1, mid_block_scale_factor=2.0, resnet_time_scale_shift="scale_shift").eval()
    for module in network.modules():
        if isinstance(module, BasicTransformerBlock):
            module.set_chunk_feed_forward(1, dim=1)
    before = run(network, inputs("sd1"))
    attach(network)
    assert torch.equal(run(network, inputs("sd1")), before)


def test_resampling_resnets_are_left_alone() -> None:
    types = {"down_block_types": ["ResnetDownsampleBlock2D", "CrossAttnDownBlock2D"]}
    types |= {"up_block_types": ["CrossAttnUpBlock2D", "ResnetUpsampleBlock2D"], "block_out_channels": [8, 16]}
    network = UNet2DConditionModel(**{**SD_1, **types}).eval()
    before = run(network, inputs("sd1"))
    attachment = attach(network)
    assert torch.equal(run(network, inputs("sd1")), before)
    assert not any("samplers" in unit.name for unit in attachment.units)


def test_attaching_twice_and_detaching_twice_raise() -> None:
    network = make("dit")
    attachment = attach(network)
    with pytest.raises(UsageError, match=r"transformer_blocks\.0 is replaced already"):
        attach(network)
    attachment.detach()
    with pytest.raises(UsageError, match="detached before"):
        attachment.detach()
    with pytest.raises(UsageError, match="was detached"), attachment.using(plain):
        pass
    attach(network).detach()


def test_a_foreign_replacement_is_not_thrown_away() -> None:
    network = make("dit")
    attachment = attach(network)
    block = network.transformer_blocks[1]
    ours = vars(block)["forward"]
    vars(block)["forward"] = lambda *args, **kwargs: ours(*args, **kwargs)
    with pytest.raises(UsageError, match=r"transformer_blocks\.1 was replaced after"):
        attachment.detach()
    vars(block)["forward"] = ours
    attachment.detach()


def test_other_modules_are_refused_by_name() -> None:
    with pytest.raises(TenutoError, match="A Linear cannot"):
        attach(nn.Linear(1, 1))
    with pytest.raises(TenutoError, match="A FluxTransformer2DModel cannot"):
        units_of({"_class_name": "FluxTransformer2DModel"})
    other = {**SD_1, "down_block_types": ["KDownBlock2D"] * 4, "up_block_types": ["UpBlock2D"] * 4}
    with pytest.raises(TenutoError, match=r"down_blocks\.0 is a KDownBlock2D"):
        units_of(other)
    with pytest.raises(ConfigError):
        units_of({**SD_1, "layers_per_block": [1]})
    with pytest.raises(TenutoError, match="no residual block"):
        units_of({**DIT, "_class_name": "DiTTransformer2DModel", "num_layers": 0})


def test_a_copy_of_an_attached_module_runs_its_own_weights() -> None:
    network, call = make("sd1"), inputs("sd1")
    attach(network)
    twin = copy.deepcopy(network)
    for parameter in twin.parameters():
        nn.init.zeros_(parameter)
    assert run(twin, call).abs().max() == 0
    assert run(network, call).abs().max() > 0


# ----------------------------------------------------------------------------------------------------------- units


def test_sdxl_base_has_227_units() -> None:
    units = units_of({"_class_name": "UNet2DConditionModel", **unet.SDXL_BASE})
    kinds = Counter(tuple(component.kind for component in unit.components) for unit in units)
    assert kinds == {("attention",): 70, ("cross_attention",): 70, ("mlp",): 70, ("conv", "conv"): 17}
    assert unet.UNetConfig() == unet.UNetConfig.from_diffusers(unet.SDXL_BASE)
    assert 5.5e12 < sum(unit.flops for unit in units) < 7e12


def test_units_of_stable_diffusion_1_5() -> None:
    units = units_of(unet.SD_1)
    kinds = Counter(unit.components[0].kind for unit in units)
    assert kinds == {"attention": 16, "cross_attention": 16, "mlp": 16, "conv": 22}


def test_costs_are_counted_from_shapes() -> None:
    """FLOPs of one sample, of matrices and attention, as torch's own counter sees them."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        network = UNet2DConditionModel(**SDXL)
        shapes = {"sample": torch.empty(1, 4, 8, 8), "timestep": torch.tensor([7])}
        shapes["encoder_hidden_states"] = torch.empty(1, 77, 16)
    cost: dict[str, float] = {}

    def counted(unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        with FlopCounterMode(display=False) as counter:
            h = h + branch()
        cost[unit] = counter.get_total_flops()
        return h

    attachment = attach(network)
    with attachment.using(counted), torch.no_grad():
        added = {"text_embeds": torch.empty(1, 16, device="meta"), "time_ids": torch.empty(1, 6, device="meta")}
        network(**shapes, added_cond_kwargs=added)
    assert {unit.name: unit.flops for unit in attachment.units} == cost


def test_dit_units_are_named_and_cost_as_our_own() -> None:
    ours = dit.units(dit.DiTConfig(input_size=8, hidden_size=16, depth=2, num_heads=2))
    theirs = units_of({"_class_name": "DiTTransformer2DModel", **DIT})
    assert [(unit.name, unit.kind, unit.flops) for unit in theirs] == [(u.name, u.kind, u.flops) for u in ours]
    assert units_of({**DIT, "_class_name": "Transformer2DModel", "norm_type": "ada_norm_zero"}) == theirs


# --------------------------------------------------------------------------------------------------------- holding


@torch.no_grad()
def test_a_held_resnet_adds_to_the_live_shortcut() -> None:
    network = make("sdxl")
    block = network.down_blocks[1].resnets[0]
    assert block.conv_shortcut is not None
    x1, x2, temb = torch.randn(1, 8, 4, 4), torch.randn(1, 8, 4, 4), torch.randn(2, 1, 32)
    update = block(x1, temb[0]) - block.conv_shortcut(x1)
    attachment = attach(network)
    holding = Unplanned(make_schedule(attachment.units, 2, every=2))
    with attachment.using(holding):
        holding.step = 0
        block(x1, temb[0])
        holding.step = 1
        held = block(x2, temb[1])
    torch.testing.assert_close(held, block.conv_shortcut(x2) + update)


@torch.no_grad()
def test_held_branches_of_a_transformer_block_add_to_the_current_stream() -> None:
    network = make("sdxl")
    path = "down_blocks.1.attentions.0.transformer_blocks.0"
    block = network.get_submodule(path)
    x1, x2, text = torch.randn(1, 9, 16), torch.randn(1, 9, 16), torch.randn(1, 5, 16)
    a1 = x1 + block.attn1(block.norm1(x1))
    cross = block.attn2(block.norm2(a1), encoder_hidden_states=text)
    a2 = x2 + block.attn1(block.norm1(x2)) + cross  # cross-attention held, its neighbours computed
    expected = a2 + block.ff(block.norm3(a2))
    attachment = attach(network)
    schedule = make_schedule(attachment.units, 2)
    active = schedule.active.copy()
    active[schedule.units.index(f"{path}.attn2"), 1] = False
    holding = Unplanned(Schedule(**{**vars(schedule), "active": active}))
    with attachment.using(holding):
        holding.step = 0
        block(x1, encoder_hidden_states=text)
        holding.step = 1
        held = block(x2, encoder_hidden_states=text + 1)
    torch.testing.assert_close(held, expected)


@torch.no_grad()
def test_a_held_dit_branch_keeps_its_gate_live() -> None:
    network = make("dit")
    block = network.transformer_blocks[0]
    x1, x2 = torch.randn(2, 1, 16, 16)
    t1, t2, y = torch.tensor([900]), torch.tensor([100]), torch.tensor([3])
    zero = torch.zeros_like(x1)
    gates = {t: block.norm1(zero, t, y, hidden_dtype=torch.float32)[1][:, None] for t in (t1, t2)}
    attention = block.attn1(block.norm1(x1, t1, y, hidden_dtype=torch.float32)[0])
    attachment = attach(network)
    for hold, gate in (("update", gates[t1]), ("branch", gates[t2])):
        schedule = make_schedule(attachment.units, 2, hold=hold)
        active = schedule.active.copy()
        active[0, 1] = False
        holding = Unplanned(Schedule(**{**vars(schedule), "active": active}))
        seen: list[Tensor] = []
        handle = block.norm3.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        with attachment.using(holding):
            holding.step = 0
            block(x1, timestep=t1, class_labels=y)
            holding.step = 1
            block(x2, timestep=t2, class_labels=y)
        handle.remove()
        torch.testing.assert_close(seen[1], x2 + gate * attention)


@torch.no_grad()
@pytest.mark.parametrize(("hold", "expected"), [("update", [3, 2]), ("branch", [3, 3])])
def test_a_block_held_after_its_gate_computes_no_conditioning(hold: str, expected: list[int]) -> None:
    network, counts = make("dit"), [0, 0]
    block = network.transformer_blocks[1]
    handles = [block.norm1.linear.register_forward_hook(lambda *_: counts.__setitem__(1, counts[1] + 1))]
    handles.append(network.proj_out_1.register_forward_hook(lambda *_: counts.__setitem__(0, counts[0] + 1)))
    norms = Counter[str]()
    for name in ("norm1.norm", "norm3"):
        block.get_submodule(name).register_forward_hook(lambda *_, name=name: norms.update([name]) or None)
    with scheduled(network, make_schedule(units_of(DIT | {"_class_name": type(network).__name__}), 2, 2, hold=hold)):
        run(network, inputs("dit"))
        run(network, inputs("dit"))
    assert counts == expected and set(norms.values()) == {2}  # once when computed, once when the network is looked at


@torch.no_grad()
def test_two_threads_may_run_one_denoiser_each_its_own_way() -> None:
    network = make("sdxl")
    attachment, call = attach(network), inputs("sdxl")
    full = run(network, call)

    def nothing(unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        return h

    def go(residual: Any) -> Tensor:
        with torch.no_grad(), attachment.using(residual):
            return run(network, call)

    bare = go(nothing)
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(go, [plain, nothing] * 8))
    for i, result in enumerate(results):
        torch.testing.assert_close(result, full if i % 2 == 0 else bare)
    assert not attachment._residuals


# ------------------------------------------------------------------------------------------------------- pipelines


@pytest.fixture(scope="module")
def vae() -> AutoencoderKL:
    torch.manual_seed(0)
    return AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4, sample_size=8).eval()


@pytest.fixture(scope="module")
def pipeline(vae: AutoencoderKL) -> StableDiffusionXLPipeline:
    pipe = StableDiffusionXLPipeline(
        vae=vae,
        text_encoder=None,
        text_encoder_2=None,
        tokenizer=None,
        tokenizer_2=None,
        unet=make("sdxl"),
        scheduler=EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"),
        add_watermarker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def paint(pipe: StableDiffusionXLPipeline, steps: int = 6, seed: int = 0, **options: Any) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    names = ("prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds")
    text = {name: torch.randn(1, *((5, 16) if "pooled" not in name else (16,)), generator=generator) for name in names}
    return pipe(**text, num_inference_steps=steps, generator=generator, output_type="pt", **options).images


def test_an_all_active_schedule_paints_the_same_picture(pipeline: StableDiffusionXLPipeline) -> None:
    before = paint(pipeline)
    schedule = make_schedule(units_of(pipeline.unet.config), 6)
    with scheduled(pipeline, schedule):
        assert torch.equal(paint(pipeline), before)
        assert torch.equal(paint(pipeline), before)
    assert torch.equal(paint(pipeline), before)


def test_a_schedule_saves_branches_in_every_generation(pipeline: StableDiffusionXLPipeline, computed: Any) -> None:
    before, counts = paint(pipeline), computed(pipeline.unet)
    schedule = make_schedule(units_of(pipeline.unet.config), 6, every=3)
    with scheduled(pipeline, schedule) as run_:
        first = paint(pipeline)
        assert set(counts.values()) == {2} and len(counts) == len(schedule.units)
        assert run_.step == 6 and not len(run_._generation._kept)
        assert torch.equal(paint(pipeline), first)
        assert set(counts.values()) == {4}
        other = paint(pipeline, seed=1)
    assert not torch.equal(first, before) and not torch.equal(first, other)


def test_the_pipeline_is_restored_exactly(pipeline: StableDiffusionXLPipeline) -> None:
    paint(pipeline)
    objects = {"scheduler": pipeline.scheduler, **dict(pipeline.unet.named_modules())}
    before = {name: set(vars(value)) for name, value in objects.items()}
    with scheduled(pipeline, make_schedule(units_of(pipeline.unet.config), 6)):
        paint(pipeline)
        assert {name: set(vars(value)) for name, value in objects.items()} != before
    with pytest.raises(ZeroDivisionError), scheduled(pipeline, make_schedule(units_of(pipeline.unet.config), 6)):
        raise ZeroDivisionError
    assert {name: set(vars(value)) for name, value in objects.items()} == before


def test_an_exception_leaves_nothing_behind(pipeline: StableDiffusionXLPipeline) -> None:
    schedule = make_schedule(units_of(pipeline.unet.config), 6, every=3)

    def fail(*args: Any) -> None:
        raise KeyboardInterrupt

    with scheduled(pipeline, schedule) as run_:
        expected = paint(pipeline)
        handle = pipeline.unet.conv_out.register_forward_hook(fail)
        with pytest.raises(KeyboardInterrupt):
            paint(pipeline, seed=5)
        handle.remove()
        assert run_.step == 0 and not len(run_._generation._kept)
        with pytest.raises(KeyboardInterrupt):
            paint(pipeline, seed=5, callback_on_step_end=fail)
        assert torch.equal(paint(pipeline), expected)


def test_another_number_of_steps_is_refused(pipeline: StableDiffusionXLPipeline) -> None:
    schedule = make_schedule(units_of(pipeline.unet.config), 4)
    with scheduled(pipeline, schedule), pytest.raises(ScheduleError, match="set to 6 timesteps"):
        paint(pipeline)
    with scheduled(pipeline, schedule, check_steps=False):
        with pytest.raises(ScheduleError, match="evaluates the network once more"):
            paint(pipeline)
        assert paint(pipeline, steps=6, denoising_end=0.5).shape == (1, 3, 8, 8)


def test_a_scheduler_exchanged_meanwhile_is_noticed(pipeline: StableDiffusionXLPipeline) -> None:
    euler, schedule = pipeline.scheduler, make_schedule(units_of(pipeline.unet.config), 6, every=2)
    with scheduled(pipeline, schedule):
        paint(pipeline)
        pipeline.scheduler = DDIMScheduler.from_config(euler.config)
        first = paint(pipeline)
        assert torch.equal(paint(pipeline), first)
    assert "set_timesteps" not in vars(pipeline.scheduler) and "set_timesteps" not in vars(euler)
    pipeline.scheduler = euler


def test_a_bare_denoiser_is_started_by_hand_and_must_keep_its_shape() -> None:
    network = make("sd1")
    with scheduled(network, make_schedule(units_of(network.config), 2, every=2)) as run_:
        first = run(network, inputs("sd1"))
        second = run(network, inputs("sd1", seed=1))
        with pytest.raises(ScheduleError, match="once more"):
            run(network, inputs("sd1"))
        run_.start()
        assert torch.equal(run(network, inputs("sd1")), first)
        with pytest.raises(ScheduleError, match=r"changed from \[2, 4, 8, 8\] to \[1, 4, 8, 8\]"):
            run(network, inputs("sd1", batch=1))
        assert torch.equal(run(network, inputs("sd1", seed=1)), second)


def test_a_schedule_of_another_model_or_other_weights_is_refused() -> None:
    network = make("sd1")
    with pytest.raises(ScheduleError, match="not for this UNet2DConditionModel"):
        scheduled(network, make_schedule(units_of(SDXL), 2)).__enter__()
    with pytest.raises(ScheduleError, match="other weights"):
        scheduled(network, make_schedule(units_of(SD_1), 2), check_weights=True).__enter__()
    attach(network).detach()  # neither refusal left it attached
    scores = score_tensors(ModuleTensors(network), units_of(SD_1), model="tiny", architecture="unet")
    fitting = Schedule(**{**vars(make_schedule(units_of(SD_1), 2)), "fingerprint": scores.fingerprint})
    with scheduled(network, fitting, check_weights=True):
        run(network, inputs("sd1"))


def test_diffusers_dit_and_our_own_agree_under_one_schedule(vae: AutoencoderKL, computed: Any) -> None:
    config = dit.DiTConfig(input_size=8, hidden_size=16, depth=2, num_heads=2)
    torch.manual_seed(0)
    ours = dit.DiT(config)
    ours.initialize_weights()
    for name, parameter in ours.named_parameters():
        if "adaLN" in name or "final_layer" in name:
            nn.init.normal_(parameter, std=0.5)  # gates of order one: a branch must matter
        elif "embed" in name and parameter.requires_grad:
            nn.init.normal_(parameter, std=0.2)  # … and so must the timestep
    theirs = make("dit")
    theirs.load_state_dict(to_diffusers(ours.state_dict()))
    for block in theirs.transformer_blocks:
        block.norm1.emb.time_proj.downscale_freq_shift = 0  # the reference divides by half, diffusers by half − 1
    pipe = DiTPipeline(theirs, vae, DDIMScheduler(clip_sample=False))
    pipe.set_progress_bar_config(disable=True)
    full = make_schedule(units_of({"_class_name": "DiTTransformer2DModel", **DIT}), 6)
    active = full.active.copy()
    active[:, 2::2] = False
    active[1, 4] = True
    saving = Schedule(**{**vars(full), "active": active, "reuse": "linear"})

    def theirs_under(schedule: Schedule | None) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        call = {"class_labels": [3, 5], "num_inference_steps": 6, "generator": generator, "output_type": "pt"}
        if schedule is None:
            return pipe(**call).images
        with scheduled(pipe, schedule):
            return pipe(**call).images

    @torch.no_grad()
    def ours_under(schedule: Schedule) -> Tensor:
        generation, solver = Executor(ours, schedule).start(), DDIMScheduler(clip_sample=False)
        solver.set_timesteps(6)
        x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        for t in solver.timesteps:
            output = generation(torch.cat([x, x]), t.expand(4), torch.tensor([3, 5, 1000, 1000]))[:, :4]
            conditional, unconditional = output.chunk(2)
            x = solver.step(unconditional + 4 * (conditional - unconditional), t, x).prev_sample
        return (vae.decode(x / vae.config.scaling_factor).sample / 2 + 0.5).clamp(0, 1)

    counts = computed(theirs)
    plain_images = theirs_under(None)
    assert torch.equal(theirs_under(full), plain_images)
    counts.clear()
    saved = theirs_under(saving)
    assert [counts[unit] for unit in saving.units] == saving.active.sum(axis=1).tolist()
    assert (saved - plain_images).abs().max() > 1e-3
    torch.testing.assert_close(ours_under(full), plain_images, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours_under(saving), saved, atol=1e-5, rtol=0)


def test_dit_weights_survive_both_conversions() -> None:
    state = dit.DiT(dit.DiTConfig(input_size=8, hidden_size=16, depth=2, num_heads=2)).state_dict()
    there = to_diffusers(state)
    assert set(there) == set(make("dit").state_dict())
    back = to_original(there, side=4)
    assert set(back) == set(state) and all(torch.equal(back[key], state[key]) for key in state)
    key = "transformer_blocks.1.norm1.emb.timestep_embedder.linear_1.bias"
    there[key] = there[key] + 1
    with pytest.raises(CheckpointError, match=r"transformer_blocks\.1 has a timestep_embedder"):
        to_original(there, side=4)
    with pytest.raises(CheckpointError, match=r"x_embedder\.proj\.weight is missing"):
        to_diffusers({})
    with pytest.raises(CheckpointError, match="not expected, such as surplus"):
        to_diffusers({**state, "surplus": torch.zeros(1)})


# ----------------------------------------------------------------------------------------------------- checkpoints


def original_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a tiny SDXL UNet under the names of the original single file."""
    places = {"conv_in": "input_blocks.0.0", "conv_norm_out": "out.0", "conv_out": "out.2"}
    places |= {"time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2"}
    places |= {"add_embedding.linear_1": "label_emb.0.0", "add_embedding.linear_2": "label_emb.0.2"}
    for i in range(3):
        for j in range(2):
            place = f"input_blocks.{1 + 3 * i + j}"
            places |= {f"down_blocks.{i}.resnets.{j}": f"{place}.0", f"down_blocks.{i}.attentions.{j}": f"{place}.1"}
        places[f"down_blocks.{i}.downsamplers.0.conv"] = f"input_blocks.{3 + 3 * i}.0.op"
        for j in range(3):
            place = f"output_blocks.{3 * i + j}"
            places |= {f"up_blocks.{i}.resnets.{j}": f"{place}.0", f"up_blocks.{i}.attentions.{j}": f"{place}.1"}
        places[f"up_blocks.{i}.upsamplers.0.conv"] = f"output_blocks.{3 * i + 2}.2.conv"
    places |= {"mid_block.resnets.0": "middle_block.0", "mid_block.attentions.0": "middle_block.1"}
    places |= {"mid_block.resnets.1": "middle_block.2"}
    inner = {"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1"}
    inner |= {"norm2": "out_layers.0", "conv2": "out_layers.3", "conv_shortcut": "skip_connection"}
    result = {}
    for key, value in state.items():
        new = next(place for place in places if key.startswith(f"{place}."))
        rest = key.removeprefix(f"{new}.")
        if ".resnets." in new:
            rest = f"{inner[rest.split('.')[0]]}.{rest.split('.')[1]}"
        result[f"model.diffusion_model.{places[new]}.{rest}"] = value
    return result


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline's directory with a sharded unet, a unet's own directory, and a single file with other parts in it."""
    folder, network = tmp_path_factory.mktemp("checkpoints"), make("sdxl")
    network.save_pretrained(folder / "pipeline" / "unet", max_shard_size="200KB")
    network.save_pretrained(folder / "directory")
    save_file(
        {**original_names(network.state_dict()), "first_stage_model.decoder.conv_in.weight": torch.zeros(1)},
        folder / "single.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(dict(network.config)))
    return folder


@pytest.mark.parametrize("name", ["pipeline", "directory", "single.safetensors"])
def test_every_layout_loads_the_same_unet(checkpoints: Path, name: str) -> None:
    network, call = load(str(checkpoints / name)).network, inputs("sdxl")
    assert network.config == unet.UNetConfig.from_diffusers(make("sdxl").config)
    with torch.no_grad():
        output = network(call["sample"], torch.tensor(7), call["encoder_hidden_states"], call["added_cond_kwargs"])
    assert torch.equal(output, run(make("sdxl"), call))
    assert {key: tuple(value.shape) for key, value in network.state_dict().items()} == unet.expected_shapes(
        network.config
    )


def test_the_single_file_is_read_as_diffusers_reads_it(checkpoints: Path) -> None:
    theirs = UNet2DConditionModel.from_single_file(
        str(checkpoints / "single.safetensors"), config=str(checkpoints), local_files_only=True
    ).state_dict()
    ours = load(str(checkpoints / "single.safetensors")).network.state_dict()
    assert set(ours) == set(theirs) and all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("name", ["pipeline", "directory", "single.safetensors"])
def test_scores_of_a_file_are_those_of_the_live_module(checkpoints: Path, name: str) -> None:
    opened = open_model(str(checkpoints / name))
    options = {"model": "tiny", "architecture": "unet"}
    stored = score_tensors(opened.checkpoint, opened.units, **options)
    live = make("sdxl")
    assert stored == score_tensors(ModuleTensors(live), attach(live).units, **options)


def test_a_unet_runs_under_the_executor(checkpoints: Path) -> None:
    network, call = load(str(checkpoints / "directory")).network, inputs("sdxl")
    arguments = (call["sample"], torch.tensor(7), call["encoder_hidden_states"], call["added_cond_kwargs"])
    with torch.no_grad():
        full = network(*arguments)
        generation = Executor(network, make_schedule(unet.units(network.config), 2, every=2)).start()
        assert torch.equal(generation(*arguments), full)
        torch.testing.assert_close(generation(*arguments), full)  # nothing changed, so neither does what is held


def test_a_config_is_a_value(checkpoints: Path) -> None:
    config = open_model(str(checkpoints / "directory")).config
    assert {config: 1}[unet.UNetConfig.from_diffusers(config.to_diffusers())] == 1
    assert config.sample_shape == (4, 8, 8) and unet.UNetConfig().sample_shape == (4, 128, 128)
    assert unet.ARCHITECTURE.units(config) == units_of(config.to_diffusers())


def test_a_variant_is_read_only_where_there_is_nothing_else(checkpoints: Path, tmp_path: Path) -> None:
    network = make("sdxl")
    network.save_pretrained(tmp_path, variant="fp16")
    assert open_model(str(tmp_path)).checkpoint.shapes
    network.half().save_pretrained(tmp_path)
    assert open_model(str(tmp_path)).checkpoint.read("conv_in.bias").dtype == torch.float16


def test_published_files_need_no_config(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = {key: tuple(value.shape) for key, value in original_names(make("sdxl").state_dict()).items()}
    with pytest.raises(ConfigError, match=r"config\.json"):
        unet.infer_config(original)
    monkeypatch.setattr(unet, "PUBLISHED", (unet.SD_1, SDXL))
    assert unet.infer_config(original) == unet.UNetConfig.from_diffusers(SDXL)
    assert unet.infer_config(unet.expected_shapes(unet.UNetConfig.from_diffusers(SDXL))) == unet.infer_config(original)


def test_damaged_checkpoints_are_sentences(checkpoints: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no \*\.safetensors"):
        open_model(str(tmp_path))
    with pytest.raises(CheckpointError, match="There is no model"):
        open_model(str(tmp_path / "absent.safetensors"))
    state = make("sdxl").state_dict()
    state.pop("conv_out.bias")
    save_file(state, tmp_path / "diffusion_pytorch_model.safetensors")
    (tmp_path / "config.json").write_text((checkpoints / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"missing 1 tensor\(s\): conv_out\.bias"):
        open_model(str(tmp_path))
    (tmp_path / "config.json").write_text('{"_class_name": "AutoencoderKL"}')
    with pytest.raises(CheckpointError, match="diffusers AutoencoderKL is none of them"):
        open_model(str(tmp_path))


def test_a_live_denoiser_is_scored_and_scheduled_as_it_is() -> None:
    network = make("sdxl")
    scores = tenuto.score(network)
    assert [unit.name for unit in scores.units] == [unit.name for unit in attach(network).units]
    network = make("sdxl")
    schedule = tenuto.schedule(network, steps=2, every=2)
    with scheduled(network, schedule, check_weights=True) as run:
        network(**inputs("sdxl"))
        assert run.step == 1
    with pytest.raises(UsageError, match="not a list"):
        tenuto.score([1, 2])
    with pytest.raises(ScheduleError, match=r"tenuto\.schedule\(pipe, steps=2\)"), scheduled(make("sd"), schedule):
        pass


# ------------------------------------------------------------------------------------------- DiT as diffusers stores it


@pytest.fixture(scope="module")
def dit_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a DiTPipeline's directory looks like, with pictures for latents."""
    directory = tmp_path_factory.mktemp("dit-pipeline")
    torch.manual_seed(0)
    network = DiTTransformer2DModel(**{**DIT, "in_channels": 3, "out_channels": 3}).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    network.save_pretrained(directory / "transformer")
    DDIMScheduler(clip_sample=False).save_pretrained(directory / "scheduler")
    (directory / "model_index.json").write_text('{"_class_name": "DiTPipeline"}')
    return directory


def test_a_dit_pipelines_directory_is_a_model(dit_pipeline: Path) -> None:
    opened = open_model(str(dit_pipeline))
    assert opened.architecture.name == "dit-diffusers"
    live = DiTTransformer2DModel.from_pretrained(dit_pipeline / "transformer")
    options = {"model": "dit", "architecture": "dit"}
    stored = score_tensors(opened.checkpoint, opened.units, **options)
    assert stored == score_tensors(ModuleTensors(live), attach(live).units, **options)
    model = load(str(dit_pipeline))
    x, t, y = torch.randn(2, 3, 8, 8), torch.tensor([9, 9]), torch.tensor([1, 3])
    with torch.no_grad():
        assert torch.equal(model.network(x, t, y), live(x, timestep=t, class_labels=y).sample)


def test_it_draws_under_a_schedule(dit_pipeline: Path) -> None:
    model = load(str(dit_pipeline))
    full = tenuto.generate(model, [1, 2], steps=8, guidance=1)
    schedule = tenuto.schedule(tenuto.score(str(dit_pipeline)), steps=8, budget=0.5)
    held = tenuto.generate(model, [1, 2], schedule=schedule, guidance=1)
    assert full.shape == held.shape == (2, 3, 8, 8) and not torch.equal(full, held)
    everything = tenuto.schedule(tenuto.score(str(dit_pipeline)), steps=8, budget=1.0)
    assert torch.equal(tenuto.generate(model, [1, 2], schedule=everything, guidance=1), full)


def test_a_pipelines_scheduler_says_what_noise_the_model_knows(dit_pipeline: Path, tmp_path: Path) -> None:
    assert load(str(dit_pipeline)).noise == NoiseLevels("linear", 1e-4, 0.02)
    shutil.copytree(dit_pipeline, tmp_path / "other")
    DDIMScheduler(beta_schedule="scaled_linear", beta_start=0.001, beta_end=0.012, steps_offset=1).save_pretrained(
        tmp_path / "other" / "scheduler"
    )
    assert load(str(tmp_path / "other")).noise == NoiseLevels("scaled_linear", 0.001, 0.012, offset=1)
    DDIMScheduler(prediction_type="v_prediction").save_pretrained(tmp_path / "other" / "scheduler")
    with pytest.raises(ConfigError, match="v_prediction"):
        tenuto.generate(load(str(tmp_path / "other")), [1], steps=8)
