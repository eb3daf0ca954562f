"""The README's Python runs as it stands."""

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_code_blocks_run(tmp_path, monkeypatch, capsys):
    pictures, text, graphs = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(pictures, "README.md", "exec"), {})
    assert "of the work" in capsys.readouterr().out
    assert len(list((tmp_path / "held").glob("*.png"))) == 3
    assert (tmp_path / "schedule.json").exists()
    exec(compile(text, "README.md", "exec"), {})
    assert "}])" in capsys.readouterr().out.replace(" ", "")
    exec(compile(graphs, "README.md", "exec"), {})


def test_both_commands_are_named():
    assert "make demo" in README and "make test" in README


def test_every_path_it_names_exists():
    root = Path(__file__).parent.parent
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (root / path).exists(), path
