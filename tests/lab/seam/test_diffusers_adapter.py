"""diffusers' denoisers at the seam: what they compute does not change, and what is held is what the schedule says."""

import copy
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from diffusers import (
    UNet2DConditionModel,
)
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.resnet import ResnetBlock2D
from torch import Tensor, nn

from tenuto.errors import TenutoError, UsageError
from tenuto.models import dit
from tenuto.models.architecture import ConfigError
from tenuto.pipelines.enable import accelerated
from tenuto.runtime.residual import Branch, plain
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.networks import unet
from tenuto_lab.seam.attachment import attach, units_of
from tenuto_lab.units.holding import Unplanned
from tests.helpers.denoisers import DIT, SD_1, SDXL, CountingResidual, inputs, make, make_schedule, run

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
    with pytest.raises(TenutoError, match="The units of a Linear are not known"):
        attach(nn.Linear(1, 1))
    with pytest.raises(TenutoError, match="The units of a HunyuanDiT2DModel are not known"):
        units_of({"_class_name": "HunyuanDiT2DModel"})
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
    for keep, gate in (("update", gates[t1]), ("branch", gates[t2])):
        schedule = make_schedule(attachment.units, 2, keep=keep)
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
@pytest.mark.parametrize(("keep", "expected"), [("update", [2, 1]), ("branch", [2, 2])])
def test_a_block_held_after_its_gate_computes_no_conditioning(keep: str, expected: list[int]) -> None:
    network, counts = make("dit"), [0, 0]
    block = network.transformer_blocks[1]
    handles = [block.norm1.linear.register_forward_hook(lambda *_: counts.__setitem__(1, counts[1] + 1))]
    handles.append(network.proj_out_1.register_forward_hook(lambda *_: counts.__setitem__(0, counts[0] + 1)))
    norms = Counter[str]()
    for name in ("norm1.norm", "norm3"):
        block.get_submodule(name).register_forward_hook(lambda *_, name=name: norms.update([name]) or None)
    schedule = make_schedule(units_of(DIT | {"_class_name": type(network).__name__}), 2, 2, keep=keep)
    with accelerated(network, schedule=schedule):
        run(network, inputs("dit"))
        run(network, inputs("dit"))
    assert counts == expected and set(norms.values()) == {1}  # once, when it is computed


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
