"""Runs every GPU test and records the run: `make test-gpu`, on a machine with a GPU.

The record says which code was run, by a digest of each file that the GPU's path goes through. tests/test_gpu_record.py
compares it with the code as it is. Comments and docstrings do not count, so that mending a sentence asks for no GPU.
"""

import ast
import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tenuto.files import read_json, write_json
from tenuto.provenance import provenance

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "gpu_tests" / "run.json"
WATCHED = ("src/tenuto/runtime",)  # what behaves otherwise on a GPU than on a CPU


def digests() -> dict[str, str]:
    """Of every watched file, by its path."""
    files = sorted(path for folder in WATCHED for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): digest(path.read_text(encoding="utf-8")) for path in files}


def digest(source: str) -> str:
    """Of what a file does: its comments and docstrings left out."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            body[0].value.value = ""
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


class Counting:
    """Counts what became of each test."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome

    def count(self, outcome: str) -> list[str]:
        return sorted(test for test, became in self.outcomes.items() if became == outcome)


def main(arguments: list[str]) -> int:
    import torch

    if not torch.cuda.is_available():
        print("There is no GPU here, so nothing would be run: every GPU test skips.")
        return 1
    marked = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text("utf-8")]
    counting = Counting()
    status = pytest.main(["-m", "gpu", "-p", "no:cacheprovider", *arguments, *map(str, marked)], plugins=[counting])
    record = {
        "provenance": {**provenance(), "command": "make test-gpu"},
        "passed": len(counting.count("passed")),
        "failed": counting.count("failed"),
        "skipped": counting.count("skipped"),
        "files": digests(),
        "changed_since": {},
    }
    write_json(RECORD, record)
    print(f"{record['passed']} passed, {len(counting.count('failed'))} failed; wrote {RECORD.relative_to(ROOT)}")
    return int(status)


def recorded() -> dict[str, Any]:
    return read_json(RECORD, "record of GPU tests")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
