"""`tenuto check` on miniatures of published layouts: text encoders, VAE and tokenizer are the directory's own."""

import json
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("make", [layouts.latent_dit, layouts.latent_uvit], ids=["dit", "uvit"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_latents_are_decoded_before_they_are_compared(tenuto: Run, tmp_path: Path, make: Any, dtype: str) -> None:
    place, file = make(tmp_path / "model"), tmp_path / "schedule.json"
    assert tenuto("schedule", place, "--steps", 20, "--budget", 0.5, "-o", file)[0] == 0
    status, out, err = tenuto("check", place, "--schedule", file, "--samples", 2, "--dtype", dtype, "--json")
    assert status in (0, 1), err
    assert all(decibels is None or decibels > 0 for decibels in json.loads(out)["likeness"])


def test_a_llada_directory_is_checked(tenuto: Run, tmp_path: Path) -> None:
    place, file = layouts.llada(tmp_path / "llada"), tmp_path / "schedule.json"
    assert tenuto("schedule", place, "--steps", 8, "--budget", 0.5, "-o", file)[0] == 0
    status, out, err = tenuto("check", place, "--schedule", file, "--for", "w1 w2", "--length", 8, "--json")
    assert status in (0, 1), err
    assert 0 <= json.loads(out)["likeness"][0] <= 1
