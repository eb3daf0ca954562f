"""Lets a page link to the project's files outside docs/ as it would on the repository's own pages (../results/x.md).

Whatever is linked so is made part of the site, and the link leads there.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"\]\(\.\./([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    root = Path(config.config_file_path).parent
    linked = {path for page in files.documentation_pages() for path in LINK.findall(page.content_string)}
    for path in sorted(linked):
        if (root / path).is_file():  # else mkdocs warns of the link
            files.append(File.generated(config, path, abs_src_path=str(root / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    return markdown if page.file.generated_by else LINK.sub(r"](\1", markdown)
