"""Looking at a network on tensors without values must never cost anybody a weight."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from diffusers.hooks import apply_group_offloading
from torch import Tensor, nn

import tenuto
from tenuto.runtime import stages
from tenuto.runtime.executor import Slower
from tenuto_lab.units import chain
from tests.helpers.pipelines import FAMILIES, QUIET, denoiser_in, draw, tiny

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore::tenuto.runtime.executor.Slower")]


def cast_layerwise(module: Any) -> None:
    module.enable_layerwise_casting(storage_dtype=torch.float16, compute_dtype=torch.float32)


def offload_groups(module: Any) -> None:
    apply_group_offloading(module, torch.device("cpu"), offload_type="leaf_level")


def move_weights(module: nn.Module) -> None:
    """A hook of the user's own, which casts each layer's weights when it runs and back when it ran."""

    def before(layer: nn.Module, args: Any) -> None:
        layer.to(torch.float64).to(torch.float32)

    def after(layer: nn.Module, args: Any, output: Any) -> None:
        layer.weight.data = layer.weight.data.clone()

    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(before)
            layer.register_forward_hook(after)


def read_values(module: nn.Module) -> None:
    """A hook that reads the numbers it is given, which tensors without values do not have."""

    def read(module: nn.Module, args: Any, output: Any) -> None:
        float(next(iter(module.parameters())).sum())

    module.register_forward_hook(read)


HOOKS: list[Callable[[Any], None]] = [cast_layerwise, offload_groups, move_weights, read_values]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"keep": "branch"}], ids=["default", "branch"])
def test_hooks_that_move_or_cast_weights_lose_none(
    family: str, hook: Callable[[Any], None], options: dict[str, Any]
) -> None:
    """Before, the generation raised, and so did the plain pipeline after `disable`: the weights were gone."""
    pipe = tiny(family)
    module = denoiser_in(pipe)
    hook(module)
    plain, weights = draw(pipe, family), [parameter.clone() for parameter in module.parameters()]
    try:
        tenuto.enable(pipe, every=4, **options)
    except tenuto.TenutoError:
        assert options  # hooks on the blocks themselves are refused there
    else:
        assert draw(pipe, family).isfinite().all()
        tenuto.disable(pipe)
    for before, after in zip(weights, module.parameters(), strict=True):
        assert type(after) is nn.Parameter and torch.equal(before, after)
    assert torch.equal(draw(pipe, family), plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_never_looks(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where graphs are recorded: asked for by name, they reach as far on a CPU as to say that there is no GPU."""

    def looked(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the network was looked at")

    monkeypatch.setattr(chain, "_evaluate_fakes", looked)
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda tensor: True))
    monkeypatch.setattr(stages, "Graphs", lambda device: Nothing())
    monkeypatch.setattr(stages.Stage, "acquire", lambda stage, generation: stage.cells is not None)
    pipe = tiny(family)
    with tenuto.accelerated(pipe, every=4), pytest.warns(Slower, match="another generation is using the graphs"):
        draw(pipe, family)


class Nothing:
    """Graphs of which none is ever recorded."""

    capture_seconds, bytes = 0.0, 0

    def __len__(self) -> int:
        return 0


def test_weights_that_a_forward_itself_casts_are_put_back() -> None:
    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor, residual: Any) -> Tensor:
            self.layer.weight.data = self.layer.weight.data.to(torch.float64).to(torch.float32)
            return residual("unit", x, lambda: self.layer(x))

    network = Casting()
    weight, values = network.layer.weight, network.layer.weight.detach().clone()
    with suppress(RuntimeError):
        chain.chain_of(network, (torch.zeros(2, 4),), {})
    assert network.layer.weight is weight and torch.equal(weight, values)
