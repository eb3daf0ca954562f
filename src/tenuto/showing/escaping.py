"""Text that comes from a file, made harmless where it is shown.

Names in a schedule or a score file may hold anything: line breaks, HTML, Markdown, terminal escapes. Whatever comes
from a file goes through one of these functions before it reaches a terminal, a page or a card.
"""

import re
from html import escape

UNSHOWN = "\N{REPLACEMENT CHARACTER}"
# Everything that Markdown could take for structure: all but letters, digits and the punctuation of ordinary names. A
# colon before a slash, and the dot of "www.", would make a link. An underscore inside a word is only an underscore.
_STRUCTURE = re.compile(
    r"[^\w \-.,%/+=()';?:]|:(?=/)|(?<=www)\.|(?<![^\W_])_|_(?![^\W_])",
    re.IGNORECASE,
)


def one_line(text: object) -> str:
    """Printable characters on one line: white space becomes a space, and a control character a replacement mark."""
    written = str(text)
    if written.isprintable():
        return written
    return "".join(c if c.isprintable() else " " if c.isspace() else UNSHOWN for c in written)


def in_html(text: object) -> str:
    """For HTML and SVG, between tags and in quoted attributes."""
    return escape(one_line(text), quote=True)


def in_markdown(text: object) -> str:
    """For a line of Markdown or a cell of its tables: special characters become character references."""
    return _STRUCTURE.sub(lambda found: f"&#{ord(found[0])};", one_line(text))
