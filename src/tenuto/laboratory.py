"""Access to the laboratory (tenuto_lab), which the product never imports.

The laboratory adds schedules that hold single units, architectures and commands. The entry points of the distribution
(pyproject.toml) name these objects. An object is loaded when it is first used.
"""

import tomllib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from tenuto.errors import TenutoError
from tenuto.extras import install

ADDITIONS, ARCHITECTURES, COMMANDS, TABS = (
    f"tenuto.{group}" for group in ("additions", "architectures", "commands", "tabs")
)
PROJECT = Path(__file__).parents[2] / "pyproject.toml"  # of a checkout


@cache
def offered(name: str, group: str = ADDITIONS) -> Any:
    """The object that the laboratory offers under this name."""
    found = _named(group).get(name)
    if found is None:
        raise TenutoError(f"{name} is offered by the laboratory, which is not installed: {install('lab')}")
    return found.load()


def offers(group: str) -> tuple[str, ...]:
    """The names of all objects that the laboratory offers in a group."""
    return tuple(sorted(_named(group)))


@cache
def _named(group: str) -> dict[str, EntryPoint]:
    found = {entry.name: entry for entry in entry_points(group=group)}
    if PROJECT.is_file():  # a checkout that is not installed, or that has changed since
        project = tomllib.loads(PROJECT.read_text(encoding="utf-8")).get("project", {})
        named = project.get("entry-points", {}).get(group, {}) if project.get("name") == "tenuto" else {}
        found |= {name: EntryPoint(name, value, group) for name, value in named.items()}
    return found
