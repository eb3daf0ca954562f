"""Every pipeline class that diffusers exports, so that none is passed over in silence."""

import inspect
from typing import Any

import tenuto
from tenuto.pipelines.engine import REFUSED

NAMELESS = "it makes or loads pipelines of other classes"
NAMES = dict.fromkeys(("DiffusionPipeline", "ModularPipeline"), NAMELESS)


def exported() -> dict[str, Any]:
    """The pipeline classes of the installed diffusers, by name; also those that are placeholders here."""
    import diffusers

    found = {name: getattr(diffusers, name) for name in dir(diffusers) if "Pipeline" in name}
    others = ("Output", "Blocks", "Config")
    return {name: one for name, one in found.items() if inspect.isclass(one) and not name.endswith(others)}


def others_than(tried: set[str]) -> list[dict[str, Any]]:
    """A row for each exported class that was not tried, with the reason."""
    rows = []
    for name, kind in exported().items():
        if name in tried:
            continue
        verdict, why = ("refused", refusal_of(kind)) if name in REFUSED else ("not tried", reason(name, kind))
        rows.append({"pipeline": name, "key": f"{name} · exported", "verdict": verdict, "why": why})
    return rows


def refusal_of(kind: Any) -> str:
    """What `tenuto.enable` says of a class that it refuses by name, before it looks at the parts."""
    try:
        tenuto.enable(object.__new__(kind))
    except tenuto.TenutoError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"{kind.__name__} is not refused")


def reason(name: str, kind: Any) -> str:
    if name in NAMES or name.startswith("AutoPipelineFor"):
        return NAMES.get(name, NAMELESS)
    if ".dummy_" in kind.__module__:
        lacking = kind.__module__.rpartition("dummy_")[2].removesuffix("_objects").replace("_and_", ", ")
        return f"a placeholder here: diffusers wants {lacking}"
    if ".deprecated." in kind.__module__ or "Blip" in name:
        return "deprecated; none of diffusers' tests builds it"
    return "none of diffusers' tests builds it, nor do the parts of another pipeline's test fit"
