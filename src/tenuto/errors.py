"""Errors to report to the user. Every message is a sentence: what was wrong, where, and what to do."""

from numbers import Real
from operator import index
from typing import SupportsIndex

LARGEST = 10**12  # of every count: arrays cannot take much larger ones


class TenutoError(Exception):
    """Something in the input or the machine makes the request impossible."""


class UsageError(TenutoError):
    """The request itself makes no sense (an option out of range, two options that exclude each other)."""


class CheckpointError(TenutoError):
    """A checkpoint is absent, damaged, of another architecture, or holds values that are not numbers."""


class ScheduleError(TenutoError):
    """A schedule is malformed, or belongs to another model, other weights or another number of steps."""


def check_whole(name: str, value: object, least: int = 1, most: int = LARGEST) -> None:
    """Refuse anything but a whole number from `least` to `most`. name: the subject of the error message"""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise UsageError(f"{name} must be a whole number, not {value!r}.")
    if index(value) < least and most == LARGEST:
        raise UsageError(f"{name} must be at least {least}, not {value!r}.")
    if not least <= index(value) <= most:
        raise UsageError(f"{name} must lie between {least} and {most:,}, not at {value!r}.")


def is_number(value: object) -> bool:
    """Whether a value is a real number; it may still be infinite or NaN."""
    return isinstance(value, Real) and not isinstance(value, bool)


def first_line(error: BaseException) -> str:
    """The first line of another library's error, short enough to quote in our own message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
