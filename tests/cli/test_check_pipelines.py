"""`tenuto check` on a real layout: a directory of SDXL's kind draws by its own text encoders and VAE."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.helpers import layouts


@pytest.mark.filterwarnings("ignore")  # of diffusers, about itself
@pytest.mark.parametrize("policy", ["refresh", "lifetimes"])
def test_an_sdxl_directory_is_checked(tenuto: Run, tmp_path: Path, policy: str) -> None:
    place, file = layouts.sdxl(tmp_path / "sdxl"), tmp_path / "schedule.json"
    status, _, err = tenuto("schedule", place, "--steps", 20, "--budget", 0.5, "--policy", policy, "-o", file)
    assert status == 0, err
    status, out, err = tenuto("check", place, "--schedule", file, "--for", "a car", "--for", "a cat", "--json")
    assert status in (0, 1), err
    found = json.loads(out)
    assert len(found["likeness"]) == 2 and all(decibels > 0 for decibels in found["likeness"])
    assert found["asked_for"] == ["a car", "a cat"] and found["worst_units"]
