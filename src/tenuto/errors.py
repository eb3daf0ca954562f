"""Errors to report to the user. Every message is a sentence: what was wrong, where, and what to do."""


class TenutoError(Exception):
    """Something in the input or the machine makes the request impossible."""


class UsageError(TenutoError):
    """The request itself makes no sense (an option out of range, two options that exclude each other)."""


class CheckpointError(TenutoError):
    """A checkpoint is absent, damaged, of another architecture, or holds values that are not numbers."""


class ScheduleError(TenutoError):
    """A schedule is malformed, or belongs to another model, other weights or another number of steps."""


def first_line(error: BaseException) -> str:
    """The first line of another library's error, short enough to quote in our own message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
