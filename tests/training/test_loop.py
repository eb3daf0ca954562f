"""The training loop that all commands share: what it keeps when the loss is no longer a number, and how it compiles."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tenuto.errors import TenutoError
from training import card, loop
from training.resuming import Resuming

SETTINGS = loop.Settings(seconds=60, lr=1e-2, compile=False, max_steps=21)


def trained(last_good: int, steps: int = 21) -> loop.Trained:
    """A small network whose loss is NaN after so many steps."""
    torch.manual_seed(0)
    left = last_good + 1  # the loop's first pass is no step

    def loss_of(forward: nn.Module) -> Tensor:
        nonlocal left
        left -= 1
        loss = forward(torch.ones(1, 2)).float().square().mean()
        return loss if left >= 0 else loss * torch.nan

    return loop.train(nn.Linear(2, 2), loss_of, replace(SETTINGS, max_steps=steps))


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "READ_EVERY", 2)
    monkeypatch.setattr(loop, "rate_at", lambda done: 1.0)  # runs of any length take the same steps


@pytest.mark.parametrize(("last_good", "kept", "seen"), [(5, 4, 6), (6, 6, 8), (20, 20, 21)])
def test_the_last_good_average_is_kept_when_the_loss_is_no_number(last_good: int, kept: int, seen: int) -> None:
    run = trained(last_good)
    assert (run.steps, run.diverged_at) == (kept, seen)
    expected = trained(last_good, kept)
    assert expected.diverged_at is None
    for key, value in expected.state.items():
        assert torch.equal(run.state[key], value)


def test_the_good_weights_are_saved_before_the_error_is_raised(tmp_path: Path) -> None:
    run = trained(5)
    loop.save_weights(tmp_path, run.state, dtype=torch.float16)
    with pytest.raises(TenutoError, match="no longer a number at step 6.* weights of step 4"):
        loop.save_record(tmp_path, run, SETTINGS, "none")
    assert all(value.isfinite().all() for value in load_file(tmp_path / "model.safetensors").values())
    record = json.loads((tmp_path / "loss.json").read_text(encoding="utf-8"))
    assert (record["steps"], record["diverged_at"]) == (4, 6)
    assert "no longer a number at step 6" in card.training_section(record, tmp_path)


def test_weights_that_were_never_good_are_not_saved() -> None:
    with pytest.raises(TenutoError, match="no good weights"):
        trained(1)


def test_every_block_of_a_deep_network_may_be_compiled() -> None:
    config = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with config.patch({name: 8}):  # monkeypatch would delete the setting afterwards
        loop._prepare(nn.Linear(2, 2), lambda forward: None, compile=True)
        assert getattr(config, name) == loop.RECOMPILE_LIMIT


CHILD = """
import sys
import torch
from pathlib import Path
from training import loop
from training.resuming import Resuming
from tests.training.test_loop import drawing

loop.READ_EVERY, loop.rate_at = 1, lambda done: 1.0
torch.manual_seed(0)
network, generator = torch.nn.Linear(2, 2), torch.Generator().manual_seed(0)
settings = loop.Settings(seconds=600, lr=1e-2, compile=False, keep_every=0.0)
loop.train(network, drawing(generator), settings, resuming=Resuming(Path(sys.argv[1]), {}, [generator]))
"""


def drawing(generator: torch.Generator) -> Any:
    def loss_of(forward: nn.Module) -> Tensor:
        return forward(torch.randn(4, 2, generator=generator)).float().square().mean()

    return loss_of


def test_a_killed_process_is_gone_on_from_to_the_same_weights(tmp_path: Path) -> None:
    state = tmp_path / "state.pt"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(state)], cwd=Path(__file__).parents[2])
    while not state.exists() and child.poll() is None:
        time.sleep(0.02)
    time.sleep(0.1)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    steps = torch.load(state, weights_only=True)["progress"]["steps"] + 3
    runs = []
    for place in (state, tmp_path / "none.pt"):
        torch.manual_seed(0)
        network, generator = nn.Linear(2, 2), torch.Generator().manual_seed(0)
        kept = Resuming(place, {}, [generator])
        runs.append(loop.train(network, drawing(generator), replace(SETTINGS, max_steps=steps), resuming=kept))
    resumed, whole = runs
    assert (resumed.resumed, whole.resumed) == (1, 0) and resumed.steps == whole.steps == steps
    assert all(torch.equal(resumed.state[key], value) for key, value in whole.state.items())
