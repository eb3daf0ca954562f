"""The documentation's Python runs as it stands, block after block."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(code, page.name, "exec"), names)


def test_the_worked_example_is_exact_when_nothing_is_held(tmp_path, monkeypatch):
    import torch

    import tenuto
    from tenuto.executor import Executor

    names: dict[str, object] = {}
    page = (DOCS / "adding-a-model.md").read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(code, "adding-a-model.md", "exec"), names)
    network = names["network"]
    evaluate = Executor(network, tenuto.schedule(names["scores"], steps=1, budget=1.0)).start()
    x, t = torch.randn(3, 32), torch.ones(3)
    assert torch.equal(evaluate(x, t), network(x, t))
