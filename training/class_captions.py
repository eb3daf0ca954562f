"""Captions made from class names: a template and the name, as in "a photo of an American alligator"."""

from collections.abc import Sequence

from tenuto_lab.networks.text_encoder import words_of
from training.captions import EMPTY, TEMPLATES, article

PLAIN = "a photo of a {}"


def caption(name: str, template: str = PLAIN) -> str:
    return article(template.format(name))


def captions(name: str) -> list[str]:
    """Every caption of a class, one for each template."""
    return [caption(name, template) for template in TEMPLATES]


def asked(names: Sequence[str]) -> list[str]:
    """The plain caption of each class, then the empty one, which is for guidance."""
    return [*map(caption, names), EMPTY]


def vocabulary(names: Sequence[str]) -> tuple[str, ...]:
    """Every word of every caption, sorted. "potter's wheel" gives the words potter, s and wheel."""
    every = {word for name in names for text in captions(name) for word in words_of(text)}
    return tuple(sorted(every | {"a", "an"}))
