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


@pytest.mark.parametrize("installed", ["", "importlib.metadata.EntryPoint('old', 'old:old', 'tenuto.additions')"])
def test_a_checkout_has_its_laboratory_even_if_it_is_not_installed_or_has_changed_since(installed: str) -> None:
    code = (
        f"import importlib.metadata; found = [{installed}]\n"
        "importlib.metadata.entry_points = lambda group='', **_: [one for one in found if one.group == group]\n"
        "from tenuto import laboratory\n"
        "print(*laboratory.offers(laboratory.ARCHITECTURES), laboratory.offered('executor').__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"dit-diffusers", "unet", "uvit", "UnitExecutor"} <= set(done.stdout.split())
