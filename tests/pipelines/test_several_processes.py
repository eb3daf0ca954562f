"""Two processes share one pipeline's transformer: the result is that of one process, and both skip the same steps."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.two_processes import MARK, STEPS, WAYS

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What the two processes saw."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [*torchrun, "--rdzv-endpoint", "localhost:0", "-m", "tests.helpers.two_processes"],
        capture_output=True, text=True, cwd=ROOT, timeout=300, check=False,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = [line for line in run.stdout.splitlines() if line.startswith(MARK)]
    assert run.returncode == 0 and lines, run.stderr[-2000:]
    return json.loads(lines[-1].removeprefix(MARK))


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_draw_what_one_draws_and_skip_the_same_steps(told, way):
    seen, one = told[way], told["alone"]
    assert "error" not in seen, seen["error"]
    assert seen["full_steps"] == list(range(STEPS))
    assert np.allclose(seen["full"], one["full"], atol=1e-5)
    assert seen["steps"][0] == seen["steps"][1] == one["steps"][0]
    assert 0 < len(seen["steps"][0]) < STEPS
    for held in seen["held"]:
        assert np.allclose(held, one["held"][0], atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_shared_transformer_draws_the_same_again_and_is_as_it_was_after_disable(told, way):
    assert told[way]["again_same"] and told[way]["after_same"]


def test_a_quality_is_agreed_on_by_all_processes(told):
    agreed, alone = told["quality"]["agreed"], told["quality"]["alone"]
    assert agreed[0] == agreed[1] and 2 < len(agreed[0]) < 40
    assert alone[0] != alone[1]  # so there was something to agree on
    assert len(agreed[0]) >= max(map(len, alone)) - 1  # the worst picture decides


def test_a_network_in_distributed_data_parallel_is_held_in_a_loop_of_ones_own(told):
    assert told["loop"] == {"calls": [5, 5], "same": [True, True]}
