"""ComfyUI's code can be loaded with a torchvision whose compiled operators do not fit the installed torch."""

import sys
from pathlib import Path

import pytest
import torch

from benchmarks.comfy_models import declare_operators

LACKING = "import torch\nif not hasattr(torch.ops.torchvision, 'nms'): raise RuntimeError('no operator nms')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "torchvision").mkdir()
    return tmp_path / "torchvision"


def test_operators_that_torchvision_lacks_are_declared_and_cannot_be_called(folder, monkeypatch):
    if hasattr(torch.ops.torchvision, "nms"):
        pytest.skip("torchvision's own operators are loaded")
    (folder / "__init__.py").write_text(LACKING, encoding="utf-8")
    declared = declare_operators()
    monkeypatch.delitem(sys.modules, "torchvision")
    assert declared is not None
    with pytest.raises(NotImplementedError):
        torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)


def test_a_torchvision_that_can_be_imported_is_left_alone(folder, monkeypatch):
    (folder / "__init__.py").touch()
    assert declare_operators() is None
    monkeypatch.delitem(sys.modules, "torchvision")
