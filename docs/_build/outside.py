"""Lets a page link to the project's files outside docs/ as it would on the repository's own pages (../results/x.md).

Whatever is linked so is made part of the site, and the link leads there. So is what such a page links to beside itself.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"\]\(\.\./([^)#\s]+)")
BESIDE = re.compile(r"\]\((?![a-z]+:|/|\.\.)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    root = Path(config.config_file_path).parent
    linked = sorted({path for page in files.documentation_pages() for path in LINK.findall(page.content_string)})
    for path in linked:  # which grows on the way
        if not (root / path).is_file():
            continue  # mkdocs warns of the link
        files.append(File.generated(config, path, abs_src_path=str(root / path)))
        if path.endswith(".md"):
            there = Path(path).parent
            found = BESIDE.findall((root / path).read_text(encoding="utf-8"))
            linked += [str(there / name) for name in dict.fromkeys(found) if str(there / name) not in linked]
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    return markdown if page.file.generated_by else LINK.sub(r"](\1", markdown)
