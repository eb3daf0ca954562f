"""Runs every GPU test and records the run: `make test-gpu`, on a machine with a GPU.

The record says which code was run, by a digest of each file that the GPU's path goes through. tests/test_gpu_record.py
compares it with the code as it is. Comments and docstrings do not count, so that mending a sentence asks for no GPU.
"""

import ast
import hashlib
import io
import sys
import tokenize
from pathlib import Path
from typing import Any

import pytest

from tenuto.files import read_json, write_json
from tenuto.provenance import provenance

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "gpu_tests" / "run.json"
WATCHED = ("src/tenuto/runtime", "src/tenuto_lab/units")  # what behaves otherwise on a GPU than on a CPU


def digests() -> dict[str, str]:
    """Of every watched file, by its path."""
    files = sorted(path for folder in WATCHED for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): digest(path.read_text(encoding="utf-8")) for path in files}


def digest(source: str) -> str:
    """Of what a file does: comments, docstrings and blank lines left out, the same under every version of Python."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            for row in range(first.lineno, (first.end_lineno or first.lineno) + 1):
                lines[row - 1] = ""
    code = "\n".join(line.rstrip() for line in lines if line.strip())
    return hashlib.sha256(code.encode()).hexdigest()[:16]


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
    status = pytest.main(
        ["-m", "gpu", "-p", "no:cacheprovider", "--continue-on-collection-errors", *arguments, *map(str, marked)],
        plugins=[counting],
    )
    record = {
        "provenance": {**provenance(), "command": "make test-gpu"},
        "passed": len(counting.count("passed")),
        "failed": counting.count("failed"),
        "skipped": counting.count("skipped"),
        "files": digests(),
        "explained": {},  # test -> why its failure says nothing of the code
        "changed_since": {},  # file -> why a change since cannot matter on a GPU
    }
    write_json(RECORD, record)
    print(f"{record['passed']} passed, {len(counting.count('failed'))} failed; wrote {RECORD.relative_to(ROOT)}")
    return int(status)


def recorded() -> dict[str, Any]:
    return read_json(RECORD, "record of GPU tests")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
