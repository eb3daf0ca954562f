"""matplotlib, which only the extra `plots` installs."""

from typing import Any

from tenuto.errors import TenutoError


class NoPlots(TenutoError):
    """A picture was requested, but matplotlib is not installed."""


def plotting() -> Any:
    """matplotlib, or an error that says how to install it."""
    try:
        import matplotlib
    except ImportError as error:
        raise NoPlots("A picture needs matplotlib, which is not installed: pip install 'tenuto[plots]'") from error
    return matplotlib
