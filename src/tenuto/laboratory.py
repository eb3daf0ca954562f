"""The door to the laboratory.

The product never imports the laboratory (tenuto_lab). What the laboratory adds to the product is named in the entry
points of the distribution (pyproject.toml) and is loaded when it is first asked for: schedules that hold single units,
more architectures, more commands.
"""

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from tenuto.errors import TenutoError

ADDITIONS, ARCHITECTURES, COMMANDS, TABS = (
    f"tenuto.{group}" for group in ("additions", "architectures", "commands", "tabs")
)


@cache
def offered(name: str, group: str = ADDITIONS) -> Any:
    """What the laboratory offers under this name."""
    found = next(iter(entry_points(group=group, name=name)), None)
    if found is None:
        raise TenutoError(
            f"The laboratory, which offers {name!r}, is not installed: pip install 'tenuto[lab]'. A checkout must be "
            "installed as well: pip install --editable ."
        )
    return found.load()


@cache
def offers(group: str) -> tuple[str, ...]:
    """The names of all that the laboratory offers in a group."""
    return tuple(sorted(entry.name for entry in entry_points(group=group)))
