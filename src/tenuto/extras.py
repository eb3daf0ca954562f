"""The optional packages: which extra of the distribution brings which package."""

import sys
from importlib.util import find_spec

from tenuto.errors import TenutoError

EXTRAS = {  # extra → packages, by the names that they are imported by
    "pipelines": ("transformers",),
    "plots": ("matplotlib",),
    "ui": ("gradio", "matplotlib"),
    "lab": ("matplotlib", "peft"),
    "eval": ("accelerate", "lm_eval", "rouge_score", "sklearn", "torch_fidelity", "transformers"),
    "docs": ("mkdocs", "material", "mkdocstrings"),
}


def missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    return [package for package in EXTRAS[extra] if not _is_there(package)]


def install(extra: str) -> str:
    """The command that installs an extra. Tenuto is installed from a checkout, so the command names no index."""
    return f"pip install '.[{extra}]' (in Tenuto's folder)"


def needs(what: str, extra: str, *packages: str) -> None:
    """Refuse to begin if one of these packages is not installed. Commands call this before they compute anything.

    what      what needs them, as the beginning of a sentence: "--png"
    packages  by default all packages of the extra
    """
    absent = [package for package in packages or EXTRAS[extra] if not _is_there(package)]
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        names = ", ".join(absent)
        raise TenutoError(f"{what} needs {names}, which {verb} not installed: {install(extra)}")


def sentence_for(package: str) -> str | None:
    """What to say when an import of this package failed; None for a package that no extra brings."""
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    return extra and f"This needs {package}, which is not installed: {install(extra)}"


def _is_there(package: str) -> bool:
    """Whether a package can be imported; nothing is imported to find out."""
    if package in sys.modules:
        return sys.modules[package] is not None
    return find_spec(package) is not None
