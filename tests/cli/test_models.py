"""tenuto models: the architectures with their published counts, and the models that ship."""

import json

from tests.cli.conftest import Run


def test_models_lists_the_families_with_their_published_counts(tenuto: Run) -> None:
    status, out, _ = tenuto("models", "--json")
    assert status == 0
    listed = {one["name"]: one for one in json.loads(out)["architectures"]}
    assert {name: (one["units"], one["parameters"]) for name, one in listed.items()} == {
        "llada": (64, 8_015_581_184),
        "dream": (56, 7_615_616_512),
        "dit": (56, 675_129_632),
        "dit-diffusers": (56, 749_826_464),  # it repeats the timestep and class embedders in every block
        "uvit": (42, 286_763_172),
        "unet": (227, 2_567_463_684),
    }
    kinds = {"attention": 70, "cross_attention": 70, "mlp": 70, "conv": 17}
    assert listed["unet"]["units_by_kind"] == kinds
    theories = ["direct", "direct", "heuristic", "heuristic", "heuristic", "partial"]
    assert [one["theory"] for one in listed.values()] == theories
    status, out, _ = tenuto("models")
    assert status == 0 and "shortcut convolutions" in out and "small-llada" in out
