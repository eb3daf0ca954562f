"""The one reader of result files: each kind of result describes its fields, and what does not fit is named.

    CHECK = fields({"name": text, "rows": listed(fields({"paper": optional(number())}))})
    read_result(path, "experiment's result", CHECK)
    # x.json is no experiment's result: rows[3].paper should be a number, not a list.

After this nobody who uses a result needs to ask again whether a field is there, or of which type it is.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from tenuto.errors import TenutoError, first_line
from tenuto.files import read_json

Check = Callable[[Any, str], None]  # takes a value and the name of its place; raises Misfit

LARGEST = 1e30  # no measured number is larger, and drawings stay within what floats can hold
LONGEST = 20_000  # characters of a text
KIND_NAMES = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}


class Misfit(Exception):
    """A value is not what its place in the file asks for."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where or 'the file'} {problem}")


def read_result(path: Path, what: str, check: Check) -> dict[str, Any]:
    """The object in a result file. what: the kind of file that it should be, for the error."""
    record = read_json(path, what)
    check_result(record, path, what, check)
    return record


def check_result(value: Any, path: Path, what: str, check: Check, where: str = "") -> None:
    """The same for a value that was read already. where: its place in the file."""
    try:
        check(value, where)
    except Misfit as misfit:
        raise TenutoError(f"{path} is no {what}: {misfit}.") from misfit


def text(value: Any, where: str, most: int = LONGEST) -> None:
    if not isinstance(value, str):
        raise Misfit(where, f"should be text, not {named(value)}")
    if len(value) > most:
        raise Misfit(where, f"is a text of {len(value)} characters; {most} are allowed")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise Misfit(where, "is a text with half a character, which has no place in UTF-8")


def flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        raise Misfit(where, f"should be true or false, not {named(value)}")


def anything(value: Any, where: str) -> None:
    """A field that nobody reads."""


def number(least: float = -LARGEST, most: float = LARGEST) -> Check:
    """A finite number from `least` to `most`."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Misfit(where, f"should be a number, not {named(value)}")
        if not least <= value <= most:  # NaN is within no range
            raise Misfit(where, f"should be a number from {least:g} to {most:g}")

    return check


def whole(least: int = 0, most: int = 10**15) -> Check:
    """A whole number from `least` to `most`."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Misfit(where, f"should be a whole number, not {named(value)}")
        if not least <= value <= most:
            raise Misfit(where, f"should be a whole number from {least} to {most:g}")

    return check


def one_of(*names: str) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or value not in names:
            raise Misfit(where, f"should be one of {', '.join(names)}")

    return check


def optional(check: Check) -> Check:
    """null, or what `check` asks for."""
    return lambda value, where: None if value is None else check(value, where)


def listed(check: Check, least: int = 0, most: int = 1_000_000) -> Check:
    """A list of `least` to `most` values that each fit."""

    def checks(value: Any, where: str) -> None:
        if not isinstance(value, list):
            raise Misfit(where, f"should be a list, not {named(value)}")
        if not least <= len(value) <= most:
            raise Misfit(where, f"should be a list of {least} to {most} values, not of {len(value)}")
        for i, one in enumerate(value):
            check(one, f"{where}[{i}]")

    return checks


def in_order(*each: Check) -> Check:
    """A list of just so many values, each of its own kind."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or len(value) != len(each):
            raise Misfit(where, f"should be a list of {len(each)} values")
        for i, (one, its) in enumerate(zip(value, each, strict=True)):
            its(one, f"{where}[{i}]")

    return check


def by_name(check: Check, least: int = 0, most: int = 10_000) -> Check:
    """An object whose names are free, and whose values each fit."""

    def checks(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Misfit(where, f"should be an object, not {named(value)}")
        if not least <= len(value) <= most:
            raise Misfit(where, f"should be an object of {least} to {most} names, not of {len(value)}")
        for name, one in value.items():
            text(name, f"a name in {where}")
            check(one, f"{where}[{name[:60]!r}]")

    return checks


def fields(needed: Mapping[str, Check], possible: Mapping[str, Check] | None = None, others: bool = False) -> Check:
    """An object with the needed fields, perhaps the possible ones, and no others unless they are allowed."""
    known = {**needed, **(possible or {})}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Misfit(where, f"should be an object, not {named(value)}")
        if missing := [name for name in needed if name not in value]:
            raise Misfit(where, f"lacks {missing[0]!r}")
        if not others and (unknown := [name for name in value if name not in known]):
            raise Misfit(where, f"has a field {unknown[0][:60]!r}, which is not known")
        for name, its in known.items():
            if name in value:
                its(value[name], f"{where}.{name}" if where else name)

    return check


def shaped(shape: Any) -> Check:
    """A check written like the value itself.

        shaped({"samples": int, "rows": [{"way": str, "psnr": float | None}], "by_name": {str: float}})

    An object may have other fields, too. A list stands for any number of such values. A check stands for itself.
    """
    simple: dict[Any, Check] = {str: text, bool: flag, int: whole(-(10**15)), float: number()}
    if isinstance(shape, dict):
        if str in shape:
            return by_name(shaped(shape[str]))
        return fields({name: shaped(its) for name, its in shape.items()}, others=True)
    if isinstance(shape, list):
        return listed(shaped(shape[0]))
    if get_origin(shape) is list:
        return listed(shaped(get_args(shape)[0]))
    if isinstance(shape, UnionType):
        return optional(shaped(next(one for one in get_args(shape) if one is not NoneType)))
    found: Check = simple.get(shape, shape)
    return found


def makes(draw: Callable[[Any], object]) -> Check:
    """A check that what is drawn from a value can be drawn. Its fields were checked before; rows may still be missing.

    draw  makes the table
    """

    def check(value: Any, where: str) -> None:
        try:
            draw(value)
        except (LookupError, StopIteration, ArithmeticError, ValueError) as error:
            raise Misfit(where, f"does not hold together ({type(error).__name__}: {first_line(error)})") from error

    return check


def both(first: Check, second: Check) -> Check:
    """Two checks; the second may rely on the first."""

    def check(value: Any, where: str) -> None:
        first(value, where)
        second(value, where)

    return check


def named(value: Any) -> str:
    """The kind of a value, in words."""
    return KIND_NAMES.get(type(value), "null")


def drawn_text(value: str) -> str:
    """A text of a file as matplotlib draws it letter by letter: between two dollars it would expect a formula."""
    return value[:200].replace("$", r"\$")


# What the head of a table says of a result: the command, the commit and the machine that made it.
ORIGIN = dict.fromkeys(("command", "commit", "torch", "hardware", "date"), str)
MADE = {"command": text, "commit": text, "torch": text, "hardware": text}
