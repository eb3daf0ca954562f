"""matplotlib, which only the extra `plots` brings."""

from typing import Any

from tenuto.errors import TenutoError


class NoPlots(TenutoError):
    """A picture was asked for, and matplotlib is not installed."""


def plotting() -> Any:
    """matplotlib, or a sentence that says how to get it."""
    try:
        import matplotlib
    except ImportError as error:
        raise NoPlots("A picture needs matplotlib, which is not installed: pip install 'tenuto[plots]'") from error
    return matplotlib
