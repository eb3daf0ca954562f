"""Every family of pipelines: full work draws the same picture, some of the work computes just that much."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tenuto
from tenuto.runtime.residual import Branch, plain
from tenuto_lab.seam.attachment import attach
from tests.helpers.pipelines import (
    FAMILIES,
    QUIET,
    TRANSFORMERS,
    attributes,
    counted,
    denoiser_in,
    draw,
    evaluation,
    tiny,
)

pytestmark = QUIET


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

    tenuto.enable(pipe, evaluations=3)
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
        with tenuto.accelerated(pipe, every=2, keep=keep), counted(pipe) as counts:
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


def test_a_denoiser_that_nobody_knows_is_served() -> None:
    pipe = tiny("sd1")

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
    with tenuto.accelerated(pipe, evaluations=3):
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


@pytest.mark.parametrize("family", ["sd1", "sdxl", "flux"])
def test_no_value_is_read_from_the_device_to_count_steps(family: str) -> None:
    """DDIM and Euler read a number whenever they step, so a correction, which steps again, reads it again."""
    pipe = tiny(family)
    with Reads(denoiser_in(pipe)) as plain:
        draw(pipe, family, steps=24)
    for options in ({"budget": 1.0}, {"evaluations": 16, "correction": family == "flux"}):
        with Reads(denoiser_in(pipe)) as enabled, tenuto.accelerated(pipe, **options):
            draw(pipe, family, steps=24)
        assert enabled.count == plain.count, options


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


@pytest.mark.gpu
def test_on_a_gpu_blocks_that_torch_compiled_are_recorded_too() -> None:
    pipe = tiny("sdxl").to("cuda")
    full = draw(pipe, "sdxl")
    for block in [part for part in pipe.unet.modules() if type(part).__name__ == "BasicTransformerBlock"]:
        block.compile()
    for mode in ("auto", "jagged"):
        with tenuto.accelerated(pipe, 1.0, mode=mode):
            for _ in range(2):
                torch.testing.assert_close(draw(pipe, "sdxl"), full, atol=1e-3, rtol=0)
            assert tenuto.summary(pipe).graphs > 0
