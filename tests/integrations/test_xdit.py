"""xDiT's FLUX pipeline in two processes on the CPU. TENUTO_XDIT names a folder with xfuser 0.7.0 and what it imports.

pip install --no-deps --target xdit xfuser==0.7.0 yunchang distvae beautifulsoup4 soupsieve einops av sentencepiece
TENUTO_XDIT=xdit python -m pytest tests/integrations/test_xdit.py
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.xdit_processes import MARK

ROOT = Path(__file__).parents[2]
FOLDER = os.environ.get("TENUTO_XDIT")


@pytest.mark.skipif(not FOLDER, reason="TENUTO_XDIT names no folder with xfuser")
@pytest.mark.parametrize("processes", [1, 2])
def test_every_process_of_xdit_skips_the_same_steps_and_disable_undoes_all(processes: int) -> None:
    folder = Path(FOLDER or "").resolve()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    path = os.pathsep.join(map(str, (ROOT, ROOT / "src", folder)))
    run = subprocess.run(
        [*torchrun, "-m", "tests.helpers.xdit_processes", str(folder)],
        capture_output=True, text=True, cwd=ROOT, timeout=300, check=False,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = [line for line in run.stdout.splitlines() if line.startswith(MARK)]
    assert run.returncode == 0 and lines, run.stderr[-2000:]
    told = json.loads(lines[-1].removeprefix(MARK))
    assert len(told["steps"]) == processes and len(told["steps"][0]) == 6
    assert all(steps == told["steps"][0] for steps in told["steps"])
    assert told["corrected"] and told["differs"] and told["again"] and told["after"]
