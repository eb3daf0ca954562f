"""Two texts side by side: which of their tokens differ."""

from collections.abc import Callable, Sequence
from itertools import groupby

DIFFERS = "differs"


def marked(
    tokens: Sequence[int], reference: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[tuple[str, str | None]]:
    """Runs of text. A run is marked if its tokens differ from the reference's tokens at the same positions."""
    pairs = list(zip(tokens, reference, strict=True))
    runs = [(same, [one for one, _ in run]) for same, run in groupby(pairs, key=lambda pair: pair[0] == pair[1])]
    return [(text, None if same else DIFFERS) for same, run in runs if (text := decode(run))]
