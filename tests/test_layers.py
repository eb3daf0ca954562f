"""The architecture as a test: which room may import from which."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

# From the ground up. A module may import from its own room and from those below, never from one beside or above it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("tenuto.errors", "tenuto.__init__"),
    ("tenuto.extras",),
    ("tenuto.files", "tenuto.quality", "tenuto.timing", "tenuto.laboratory"),
    ("tenuto.provenance",),
    ("tenuto.scheduling",),
    ("tenuto.runtime",),
    ("tenuto.models",),
    ("tenuto.deciding",),
    ("tenuto.sampling",),
    ("tenuto.pipelines",),
    ("tenuto.text", "tenuto.showing"),
    ("tenuto.comparing",),
    ("tenuto.ui",),
    ("tenuto.cli",),
    ("tenuto.__main__",),
    ("tenuto_lab.journal", "tenuto_lab.retired", "tenuto_lab.__init__"),
    ("tenuto_lab.scoring",),
    ("tenuto_lab.units",),
    ("tenuto_lab.seam",),
    ("tenuto_lab.networks",),
    ("tenuto_lab.judging", "tenuto_lab.candidates", "tenuto_lab.checking", "tenuto_lab.hub", "tenuto_lab.result_files"),
    ("tenuto_lab.probing",),
    ("tenuto_lab.rivals",),
    ("tenuto_lab.frontier", "tenuto_lab.speed"),
    ("tenuto_lab.full_size",),
    ("tenuto_lab.paper",),
    ("tenuto_lab.tabs", "tenuto_lab.commands"),
    ("tenuto_lab.cli",),
    ("tenuto_lab.__main__",),
)


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name if name.count(".") == 1 else name.removesuffix(".__init__")] = path
    return found


def layer_of(module: str) -> tuple[int, str]:
    """The height of a module's room, and the room."""
    for height, rooms in enumerate(LAYERS):
        for room in rooms:
            if module == room or module.startswith(f"{room}."):
                return height, room
    pytest.fail(f"{module} belongs to no room: say where it stands in LAYERS.")


def imports_of(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of ours that a file imports, at its head or in a function; not those for types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in ("tenuto", "tenuto_lab")}
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("tenuto", "tenuto_lab"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return {"tenuto.__init__" if one == "tenuto" else one for one in found}


MODULES = modules()


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    height, room = layer_of(module)
    for imported in imports_of(MODULES[module], MODULES):
        below, other = layer_of(imported)
        assert other == room or below < height, f"{module} imports {imported}, which stands beside or above it"


def test_the_product_never_imports_the_laboratory() -> None:
    for module, path in MODULES.items():
        if module.startswith("tenuto."):
            assert "tenuto_lab" not in "".join(imports_of(path, MODULES)), module


def test_no_two_files_share_a_name() -> None:
    """But for the command line, whose files are named after what they command."""
    stems: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        stem = module.rsplit(".", 1)[1]
        if path.stem not in ("__init__", "__main__") and ".cli." not in module:
            stems.setdefault(stem, []).append(module)
    assert not {stem: where for stem, where in stems.items() if len(where) > 1}
