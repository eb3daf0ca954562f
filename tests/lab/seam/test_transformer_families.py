"""PixArt, SD3, FLUX and Wan at the seam: nothing changes by it, and what is held is what the schedule says."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tenuto
from tenuto.runtime.compilation import branch_function
from tenuto.runtime.executor import Executor
from tenuto.runtime.residual import Branch, plain
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.seam import transformer_blocks
from tenuto_lab.seam.attachment import attach, units_of
from tenuto_lab.units.holding import Unplanned
from tests.helpers.denoisers import CountingResidual, make_schedule
from tests.helpers.pipelines import TRANSFORMERS, transformer

pytestmark = pytest.mark.parametrize("family", TRANSFORMERS)


def inputs(family: str, seed: int = 0, tokens: int = 4, text: int = 5, device: str = "cpu") -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    batch = 2 if device == "cpu" else 1

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator).to(device)

    words = normal(text, 12)
    t = torch.full((batch,), 0.7 if family == "flux" else 700.0 - seed, device=device)
    if family == "pixart":
        added = {"resolution": None, "aspect_ratio": None}
        return {"hidden_states": normal(4, 8, 8), "encoder_hidden_states": words, "timestep": t} | {
            "added_cond_kwargs": added
        }
    if family == "sd3":
        call = {"hidden_states": normal(4, 8, 8), "pooled_projections": normal(10)}
    elif family == "flux":
        ids = {"img_ids": torch.zeros(tokens, 3, device=device), "txt_ids": torch.zeros(text, 3, device=device)}
        call = {"hidden_states": normal(tokens, 16), "pooled_projections": normal(10), **ids}
    else:
        call = {"hidden_states": normal(16, 2, 4, 4)}
    return {**call, "encoder_hidden_states": words, "timestep": t}


@torch.no_grad()
def run(network: nn.Module, call: dict[str, Any]) -> Tensor:
    return network(**call).sample


def test_nothing_changes_before_during_and_after(family: str) -> None:
    network, call = transformer(family), inputs(family)
    before, state = run(network, call), {name: dict(vars(m)) for name, m in network.named_modules()}
    attachment = attach(network)
    assert torch.equal(run(network, call), before)
    with attachment.using(plain):
        assert torch.equal(run(network, call), before)
    attachment.detach()
    assert torch.equal(run(network, call), before)
    assert {name: set(vars(m)) for name, m in network.named_modules()} == {k: set(v) for k, v in state.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_nothing_changes_in_lower_precision_either(family: str, dtype: torch.dtype) -> None:
    network, call = transformer(family).to(dtype), inputs(family)
    call = {k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in call.items()}
    before = run(network, call)
    attachment = attach(network)
    with attachment.using(plain):
        assert torch.equal(run(network, call), before)
    schedule = make_schedule(attachment.units, 2)
    evaluate = Executor(lambda *, residual, **named: attachment.run(network, residual, **named), schedule).start()
    with torch.no_grad():
        assert torch.equal(evaluate(**call).sample, before)


def test_every_unit_goes_through_the_seam_once_and_in_order(family: str) -> None:
    network, counting = transformer(family), CountingResidual()
    attachment = attach(network)
    with attachment.using(counting):
        run(network, inputs(family))
    assert counting.calls == [unit.name for unit in attachment.units]
    assert len(set(counting.calls)) == len(counting.calls)


def test_every_branch_matters_and_every_unit_has_a_score(family: str) -> None:
    network, call = transformer(family), inputs(family)
    attachment = attach(network)
    full = run(network, call)

    for left_out in attachment.units:

        def without(unit: str, h: Tensor, branch: Branch, gate: Branch | None = None, left: str = left_out.name):
            return h if unit == left else plain(unit, h, branch, gate)

        with attachment.using(without):
            assert not torch.equal(run(network, call), full), left_out.name
    attachment.detach()
    scores = tenuto.score(network)
    assert [unit.name for unit in scores.units] == [unit.name for unit in attachment.units]
    assert all(0 < unit.score <= 1 for unit in scores.units) and max(unit.score for unit in scores.units) > 0.999
    config = {"_class_name": type(network).__name__, **network.config}
    assert units_of(config) == attachment.units


def test_costs_are_counted_from_shapes(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOPs of one sample, of matrices and attention, as torch's own counter sees them, block by block."""
    from torch.utils.flop_counter import FlopCounterMode

    for name, value in {"PIXART_TEXT": 5, "SD3_TEXT": 5, "FLUX_TEXT": 5, "FLUX_TOKENS": 4}.items():
        monkeypatch.setattr(transformer_blocks, name, value)
    monkeypatch.setattr(transformer_blocks, "WAN_TEXT", 5)
    monkeypatch.setattr(transformer_blocks, "WAN_TOKENS", 2 * 2 * 2)
    network, cost = transformer(family).to("meta"), Counter[str]()
    attachment = attach(network)

    def counted(unit: str, h: Tensor, branch: Branch, gate: Branch | None = None) -> Tensor:
        with FlopCounterMode(display=False) as counter:
            h = h + branch()
        cost[unit.replace("attn_context", "attn")] += counter.get_total_flops()  # one attention serves both
        return h

    with attachment.using(counted):
        run(network, inputs(family, device="meta"))
    expected, modulation = Counter[str](), Counter[str]()
    for unit in attachment.units:
        expected[unit.name.replace("attn_context", "attn")] += int(unit.flops)
    if family in ("sd3", "flux"):  # a block's modulation is computed in its first branch, and is no part of the unit's
        for name, block in network.named_modules():
            for part in ("norm1", "norm1_context", "norm"):
                linear = getattr(getattr(block, part, None), "linear", None)
                if linear is not None and "transformer_blocks" in name:
                    first = name if part == "norm" else f"{name}.attn"
                    modulation[first] += 2 * linear.in_features * linear.out_features
    if family == "sd3":  # the last block's text is projected for the picture's attention, and for nothing else
        width = 16
        modulation["transformer_blocks.2.attn"] += 3 * 2 * 5 * width * width + 4 * 5 * (16 + 5) * width
    assert cost == expected + modulation


@pytest.mark.parametrize("pattern", ["random", "text", "picture"])
@pytest.mark.parametrize("keep", ["update", "branch"])
def test_a_plan_holds_what_each_unit_would_hold_by_itself(family: str, keep: str, pattern: str) -> None:
    """Units held at random, or all that read the text computed and the others held, or the other way round."""
    network = transformer(family)
    attachment = attach(network)
    full = make_schedule(attachment.units, 6, keep=keep, predict="linear")
    active = np.random.default_rng(0).random(full.active.shape) < 0.4
    if pattern != "random":
        of_text = [unit.name.endswith(("attn2", "_context")) for unit in attachment.units]
        active[:] = (np.array(of_text) == (pattern == "text"))[:, None]
    active[:, 0] = True
    schedule = Schedule(**{**vars(full), "active": active})

    def under(residual: Any, **named: Any) -> Tensor:
        return attachment.run(network, residual, **named).sample

    evaluate = Executor(lambda *, residual, **named: under(residual, **named), schedule, module=network).start()
    alone = Unplanned(schedule)
    with torch.no_grad():
        for step in range(6):
            alone.step = step
            call = inputs(family, seed=step)
            torch.testing.assert_close(evaluate(**call), under(alone, **call), rtol=1e-4, atol=1e-4)


def test_published_sizes_have_the_units_one_expects(family: str) -> None:
    kind, _ = TRANSFORMERS[family]
    # of PixArt-Σ, SD3 medium, FLUX.1 and Wan 2.1 14B
    counts = {"pixart": 28 * 3, "sd3": 24 * 4 - 2, "flux": 19 * 4 + 38, "wan": 40 * 3}
    config = {"num_layers": 24} if family == "sd3" else {}
    units = units_of({"_class_name": kind.__name__, **config})
    assert len(units) == counts[family]
    if family == "flux":
        assert [unit.kind for unit in units[-38:]] == ["group"] * 38
        assert 50e12 < sum(unit.flops for unit in units) < 75e12


def test_what_is_compiled_is_compiled_branch_by_branch(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()

    def compiles(function: Any, **options: Any) -> Any:
        asked.add(function.__name__)
        return function

    monkeypatch.setattr(branch_function, "compiled", lambda self, function: compiles(function))
    network, call = transformer(family), inputs(family)
    full, attachment = run(network, call), attach(network)
    schedule = make_schedule(attachment.units, 1)
    under = Executor(
        lambda *, residual, **named: attachment.run(network, residual, **named), schedule, compiled=True
    ).start()
    with torch.no_grad():
        torch.testing.assert_close(under(**call).sample, full)
    assert asked == {"_sum_of_branch"} | ({"attend_jointly"} if family in ("sd3", "flux") else set())
