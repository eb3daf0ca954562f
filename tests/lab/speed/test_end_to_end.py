"""Whole generations are timed, and the ladder's lifetimes are those of a model of the same layout."""

from typing import Any

import numpy as np
import pytest
import torch

import tenuto
from benchmarks.ladder import FAMILIES, TINY, make_subject
from tenuto.errors import UsageError
from tenuto.models import architecture
from tenuto.models.dit import DiTConfig
from tenuto.scheduling.units import block_of
from tenuto_lab.speed.end_to_end import end_to_end
from tenuto_lab.speed.ladder import ladder, spectral_lifetimes


@pytest.mark.parametrize("family", list(TINY))
def test_a_whole_generation_of_every_layout_is_timed(family: str) -> None:
    size = 40 if family == "llada" else 1
    subject = make_subject(family, size, torch.device("cpu"), torch.float32, tiny=True)
    known = tenuto.score("small-llada" if family == "llada" else f"tiny-{family}")
    schedule = spectral_lifetimes(subject.units, 8, FAMILIES[family][1], known)
    found = end_to_end(subject, family, schedule, repeats=1)
    assert found["eager_s"] > 0 and found["scheduled_s"] > 0 and found["steps"] == 8
    assert found["speedup"] == pytest.approx(found["eager_s"] / found["scheduled_s"])


def test_lifetimes_of_a_large_layout_are_those_of_the_small_one() -> None:
    known = tenuto.score("tiny-dit")
    units = architecture("dit").units(DiTConfig())
    made = spectral_lifetimes(units, 100, 0.34, known)
    blocks = {block_of(unit): life for unit, life in zip(made.units, made.lifetimes, strict=True)}
    assert sum(blocks.values()) / (100 * len(blocks)) == pytest.approx(0.34, abs=0.02)
    # The same depth has the same place in the order: the small model's highest block is the large one's, too.
    raw = np.array([unit.raw for unit in known.units]).reshape(-1, 2).sum(1)
    place = float(np.argmax(list(blocks.values()))) / (len(blocks) - 1)
    assert abs(place - float(raw.argmax()) / (len(raw) - 1)) < 0.06
    by_branch = spectral_lifetimes(units, 100, 0.34, known, "branch")
    assert by_branch.lifetimes != made.lifetimes
    with pytest.raises(UsageError, match="no unit of the kind"):
        spectral_lifetimes(architecture("unet").units(architecture("unet").config()), 10, 0.3, known)


def test_the_ladder_takes_them() -> None:
    subject: Any = make_subject("dit", 1, torch.device("cpu"), torch.float32, tiny=True)
    known = tenuto.score("tiny-dit")
    rung = next(one for one in ladder(subject, 0.34, 20, known=known) if "lifetimes" in one.name)
    assert rung.schedule == spectral_lifetimes(subject.units, 20, 0.34, known)
