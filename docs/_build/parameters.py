"""Our docstrings name a parameter, leave a gap and say what it means; the reference shows such lines as a list."""

import re
from typing import Any

import griffe

ENTRY = re.compile(r"^(\w+)  +(\S.*)$")
FURTHER = re.compile(r"^ {3,}(\S.*)$")
CHOICE = re.compile(r"^\w+(, \w+)*: ")  # one of the values a parameter may have


class Parameters(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """Markdown in which every line of the form `name   meaning` is an entry of a list."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if entry := ENTRY.match(line):
            if not inside:
                lines.append("")
            lines.append(f"- `{entry[1]}`: {entry[2]}")
            inside = True
        elif inside and (further := FURTHER.match(line)):
            lines[-1] += ("<br>" if CHOICE.match(further[1]) else " ") + further[1]
        else:
            inside = False
            lines.append(line)
    return "\n".join(lines)
