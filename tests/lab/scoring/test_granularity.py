"""By blocks, the branches of a block share one score and one lifetime, and are held together."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tenuto
from tenuto.errors import TenutoError, UsageError
from tenuto.runtime.executor import Executor
from tenuto.runtime.residual import plain
from tenuto.scheduling.units import block_of
from tenuto_lab.scoring.scores import at_granularity, load_scores
from tenuto_lab.units.lifetimes import lifetimes
from tests.cli.conftest import Run
from tests.cli.conftest import tenuto as tenuto_run  # noqa: F401  a fixture
from tests.conftest import random_dit, write_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    network = random_dit()
    for i, block in enumerate(network.blocks):  # so that the blocks differ clearly
        block.mlp.fc1.weight *= 1 + i
    return tenuto.load(str(write_checkpoint(tmp_path_factory.mktemp("model") / "toy", network)))


@pytest.mark.parametrize(
    ("unit", "block"),
    [
        ("blocks.3.attn", "blocks.3"),
        ("mid_block.mlp", "mid_block"),
        ("down_blocks.0.resnets.1", "down_blocks.0.resnets.1"),
        ("down_blocks.1.attentions.0.transformer_blocks.0.attn2", "down_blocks.1.attentions.0.transformer_blocks.0"),
        ("network", "network"),
    ],
)
def test_a_units_block_is_in_its_name(unit: str, block: str) -> None:
    assert block_of(unit) == block


def test_a_blocks_score_is_the_sum_over_its_branches(model: Any) -> None:
    branches, blocks = tenuto.score(model), tenuto.score(model, granularity="block")
    raw = [unit.raw for unit in branches.units]
    sums = [raw[i] + raw[i + 1] for i in range(0, len(raw), 2)]
    assert [unit.raw for unit in blocks.units] == pytest.approx(np.repeat(sums, 2).tolist())
    assert [unit.score for unit in blocks.units] == pytest.approx(np.repeat(np.array(sums) / max(sums), 2).tolist())
    assert at_granularity(blocks, "branch") == branches and at_granularity(branches, "block") == blocks


def test_branches_of_a_block_share_a_lifetime_and_a_budget_counts_blocks(model: Any) -> None:
    scores = tenuto.score(model)
    made = lifetimes(scores, 20, budget=0.5, granularity="block")
    assert all(made.lifetimes[i] == made.lifetimes[i + 1] for i in range(0, len(made.units), 2))
    assert len(set(made.lifetimes)) == 3 and made.policy["granularity"] == "block"
    assert made.budget == pytest.approx(0.5, abs=0.03)
    assert made == tenuto.schedule(model, 20, policy="lifetimes", budget=0.5, granularity="block")
    assert made == lifetimes(tenuto.score(model, granularity="block"), 20, budget=0.5)
    assert made != lifetimes(scores, 20, budget=0.5)
    with pytest.raises(UsageError, match="belongs to the policy lifetimes"):
        tenuto.schedule(model, 20, granularity="block")
    with pytest.raises(UsageError, match="branch or block"):
        lifetimes(scores, 20, granularity="layer")


def test_blocks_of_unequal_size_count_once_each() -> None:
    """Of a UNet, a transformer block of three branches counts as much as a convolutional block of one."""
    scores = tenuto.score("tiny-sdxl", granularity="block")
    made = lifetimes(scores, 50, budget=0.4)
    by_block = {block_of(unit): life for unit, life in zip(made.units, made.lifetimes, strict=True)}
    assert sum(by_block.values()) / (50 * len(by_block)) == pytest.approx(0.4, abs=0.01)
    assert len(by_block) < len(made.units) and abs(made.budget - 0.4) > 0.01


@torch.no_grad()
def test_a_held_block_adds_what_the_whole_block_added(model: Any) -> None:
    made = lifetimes(tenuto.score(model, granularity="block"), 6, budget=0.5)
    step = 5
    held = {block_of(unit) for unit, row in zip(made.units, made.active, strict=True) if not row[step]}
    assert held  # otherwise nothing would be tested
    torch.manual_seed(0)
    inputs = [(torch.randn(1, 1, 8, 8), torch.tensor([900 - 100 * s]), torch.tensor([1])) for s in range(6)]
    generation = Executor(model.network, made).start()
    outputs = [generation(*given) for given in inputs]
    added: dict[str, torch.Tensor] = {}  # what each block added at its last computed step, by hand
    last = {block_of(unit): row[: step + 1].nonzero()[0][-1] for unit, row in zip(made.units, made.active, strict=True)}

    for s, given in enumerate(inputs):
        start: dict[str, torch.Tensor] = {}

        def residual(unit: Any, h: Any, branch: Any, gate: Any = None, s: int = s, start: Any = start) -> Any:
            block, first = block_of(unit), unit.endswith("attn")
            if s > last[block]:
                return h + added[block] if first else h
            if first:
                start[block] = h
            after = plain(unit, h, branch, gate)
            if not first:
                added[block] = after - start[block]
            return after

        torch.testing.assert_close(outputs[s], model.network(*given, residual=residual), rtol=1e-4, atol=1e-5)


def test_a_score_file_keeps_its_granularity(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    tenuto.score(model, granularity="block").save(path)
    assert load_scores(path).granularity == "block"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "granularity": "layer"}))
    with pytest.raises(TenutoError, match="granularity is branch or block, not 'layer'"):
        load_scores(path)
    del record["granularity"]  # as files of earlier versions
    path.write_text(json.dumps(record))
    assert load_scores(path).granularity == "branch"


def test_the_command_line_scores_and_schedules_blocks(tenuto_run: Run, model: Any) -> None:  # noqa: F811
    status, out, err = tenuto_run("score", model.name, "--granularity", "block", "-o", "scores.json")
    assert status == 0 and "one score for each block" in " ".join(out.split()), err
    options = ("--steps", 10, "--policy", "lifetimes", "--budget", 0.5)
    for source, more in (("scores.json", ()), (model.name, ("--granularity", "block"))):
        status, out, err = tenuto_run("schedule", source, *options, *more, "--json")
        assert status == 0, err
        assert json.loads(out)["policy"]["granularity"] == "block"
