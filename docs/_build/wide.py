"""Gives the page of the paper's experiments the width of its table of contents: its first table should fit one screen."""

from typing import Any

WIDE = ("results.md",)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    return markdown
