"""matplotlib, which only the extra `plots` installs."""

from typing import Any

from tenuto.errors import TenutoError
from tenuto.extras import install


class NoPlots(TenutoError):
    """A picture was requested, but matplotlib is not installed."""


def plotting() -> Any:
    """matplotlib, or an error that says how to install it."""
    try:
        import matplotlib
    except ImportError as error:
        raise NoPlots(f"A picture needs matplotlib, which is not installed: {install('plots')}") from error
    return matplotlib
