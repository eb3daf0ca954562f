"""The door to the laboratory: what is behind it is loaded when it is asked for, installed or not."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tenuto import laboratory
from tenuto.errors import TenutoError

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAMED = [(group, name) for group, named in PROJECT["entry-points"].items() for name in named]


@pytest.mark.parametrize(("group", "name"), NAMED)
def test_everything_named_is_there(group: str, name: str) -> None:
    assert laboratory.offered(name, group) is not None


def test_what_nobody_offers_is_named() -> None:
    with pytest.raises(TenutoError, match="moon is offered by the laboratory, which is not installed: pip install"):
        laboratory.offered("moon")


def test_a_checkout_that_is_not_installed_has_its_laboratory() -> None:
    code = (
        "import importlib.metadata; importlib.metadata.entry_points = lambda **wanted: []\n"
        "from tenuto import laboratory\n"
        "print(*laboratory.offers(laboratory.ARCHITECTURES), laboratory.offered('executor').__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["dit-diffusers", "unet", "uvit", "UnitExecutor"]
