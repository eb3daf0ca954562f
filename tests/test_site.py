"""The documentation's site builds without a warning and asks nothing of other machines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers.python"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


def test_it_builds_and_takes_along_what_it_links_to(site: Path) -> None:
    assert (site / "results" / "frontier" / "frontier.html").is_file()
    page = (site / "schedules.html").read_text(encoding="utf-8")
    assert 'href="results/frontier/frontier.html"' in page and 'href="../results' not in page


def test_the_reference_is_made_from_docstrings(site: Path) -> None:
    page = (site / "reference.html").read_text(encoding="utf-8")
    assert "A schedule for <code>steps</code> network evaluations" in page
    assert "<code>budget</code>: share of " in page


def test_no_font_script_style_or_picture_comes_from_elsewhere(site: Path) -> None:
    outside = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="?(?:https?:)?//[^"> ]+')
    for page in site.rglob("*.html"):
        assert not outside.findall(page.read_text(encoding="utf-8")), page
