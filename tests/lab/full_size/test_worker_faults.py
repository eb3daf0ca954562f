"""A worker that is killed, or a disk that is full, changes nothing in the set. The longer attack: tests/fuzz."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_killed_workers_and_a_full_disk_leave_the_same_set() -> None:
    """Once each for two, three and four processes; the seed says when."""
    command = [sys.executable, "-m", "tests.fuzz.eval_workers", "--seed", "23", "--rounds", "6"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("eval_workers: seed 23, 6 faults under (2, 3, 4) processes: worker killed 3 times")
    assert done.stdout.endswith("all sets equal.\n") and len(done.stdout.splitlines()) == 1
