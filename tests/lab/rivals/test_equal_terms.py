"""Rivals on equal terms: DeepCache where there are long skips, its features under lifetimes, drift of each sample."""

from typing import Any

import pytest
import torch

import tenuto
from tenuto.errors import UsageError
from tenuto.runtime.executor import Executor
from tenuto.runtime.residual import plain
from tenuto_lab.rivals import ActivationDrift, DeepCache, shallow_units
from tenuto_lab.units.lifetimes import lifetimes
from tests.conftest import random_dit, write_checkpoint
from tests.lab.networks.test_uvit import random_uvit

STEPS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tenuto.load(str(write_checkpoint(tmp_path_factory.mktemp("model") / "dit", random_dit(depth=2))))


def uvit() -> tuple[Any, list[str]]:
    from tenuto_lab.networks.uvit import units

    network = random_uvit()
    return network, [unit.name for unit in units(network.config)]


def test_of_uvit_the_outermost_blocks_stay_live() -> None:
    _, names = uvit()  # two blocks in, one in the middle, two out
    assert {unit.rsplit(".", 1)[0] for unit in shallow_units(names, 0)} == {"in_blocks.0", "out_blocks.1"}
    assert "mid_block.attn" not in shallow_units(names, 1) and "in_blocks.1.mlp" in shallow_units(names, 1)
    with pytest.raises(UsageError, match="skip branches 0 to 1"):
        shallow_units(names, 2)


@torch.no_grad()
def test_of_uvit_the_deep_stream_is_held_and_the_skip_is_live() -> None:
    network, names = uvit()
    rival = DeepCache(network, names, 2)
    first, second = ((torch.randn(1, 3, 8, 8), torch.tensor([t]), torch.tensor([1])) for t in (900, 800))
    generation = rival.start()
    generation(*first)
    got = generation(*second)
    deep: dict[str, torch.Tensor] = {}  # the stream behind the last deep unit at the first step, by hand

    def note(unit: Any, h: Any, branch: Any, gate: Any = None) -> Any:
        deep[unit] = plain(unit, h, branch, gate)
        return deep[unit]

    network(*first, residual=note)
    shallow = shallow_units(names, 0)
    want = network(*second, residual=lambda unit, *rest: plain(unit, *rest) if unit in shallow else deep[unit])
    assert torch.equal(got, want) and not torch.equal(got, network(*second))
    assert rival.work == pytest.approx(0.5 + 0.5 * len(shallow) / len(names))


@torch.no_grad()
def test_under_lifetimes_deepcaches_features_are_held_and_units_end() -> None:
    model = tenuto.load("tiny-uvit")
    names, ends = [unit.name for unit in model.units], lifetimes(tenuto.score(model), 6, budget=0.5)
    plain_rival, ended = (DeepCache(model.network, names, 2, ends=one) for one in (None, ends))
    for rival in (plain_rival, ended):
        tenuto.generate(model, [0], steps=6, executor=rival)
    assert ended.work < plain_rival.work
    for unit, life in zip(ends.units, ends.lifetimes, strict=True):
        live = unit in ended.shallow
        assert ended.computed[unit] == sum(s < life and (live or s % 2 == 0) for s in range(6))


def test_samples_that_decide_for_themselves_are_as_if_each_were_alone(model: Any) -> None:
    schedule = tenuto.schedule(tenuto.score(model), STEPS, policy="lifetimes", budget=0.5)

    def drawn(classes: list[int], seed: int, halves: int | None, guidance: float = 1.5) -> Any:
        rival = ActivationDrift(model.network, schedule, halves)
        options: dict[str, Any] = {"steps": STEPS, "executor": rival, "guidance": guidance, "seed": seed}
        return tenuto.generate(model, classes, **options), rival

    together, rival = drawn([0, 1, 2], 0, 2)
    assert rival.work == pytest.approx(schedule.budget)
    for i in range(3):
        alone, _ = drawn([i], i, None)
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-4, atol=1e-4)
    unguided, _ = drawn([0, 1], 0, 1, 1.0)
    assert not torch.equal(
        unguided, tenuto.generate(model, [0, 1], steps=STEPS, executor=Executor(model.network), guidance=1.0)
    )
    with pytest.raises(UsageError, match="one row or two"):
        ActivationDrift(model.network, schedule, 3)
