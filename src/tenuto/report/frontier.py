"""A frontier as tables and pictures."""

from pathlib import Path
from typing import Any


def frontier_tables(record: dict[str, Any]) -> str:
    return ""


def frontier_picture(record: dict[str, Any], model: str, path: Path) -> None:
    return None
