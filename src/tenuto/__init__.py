"""Tenuto: diffusion models made faster without training.

    import tenuto
    tenuto.enable(pipe, budget=0.25)          # a diffusers pipeline; tenuto.disable(pipe) restores it

    model = tenuto.load("tiny-dit")           # or without a pipeline
    schedule = tenuto.schedule(model, steps=50, budget=0.25)
    images = tenuto.generate(model, classes=[0, 1, 2], schedule=schedule)

Names are imported when they are first used, so that `import tenuto` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOMES = {
    "enable": "tenuto.pipelines.enable",
    "disable": "tenuto.pipelines.enable",
    "accelerated": "tenuto.pipelines.enable",
    "configure": "tenuto.pipelines.enable",
    "running": "tenuto.pipelines.enable",
    "summary": "tenuto.pipelines.enable",
    "compare": "tenuto.comparing",
    "load": "tenuto.models",
    "schedule": "tenuto.deciding",
    "generate": "tenuto.sampling.pictures",
    "generate_text": "tenuto.sampling.masked",
    "psnr": "tenuto.quality",
    "save_images": "tenuto.showing.images",
    "Model": "tenuto.models",
    "MaskedSampling": "tenuto.sampling.masked",
    "Sampling": "tenuto.sampling.pictures",
    "Schedule": "tenuto.scheduling.schedule",
    "load_schedule": "tenuto.scheduling.schedule",
    "TenutoError": "tenuto.errors",
}
_OFFERED = ("score", "Scores", "load_scores")  # by the laboratory
_MODULES = ("text",)  # tenuto.text needs no import of its own
__all__ = [
    "MaskedSampling",
    "Model",
    "Sampling",
    "Schedule",
    "Scores",
    "TenutoError",
    "__version__",
    "accelerated",
    "compare",
    "configure",
    "disable",
    "enable",
    "generate",
    "generate_text",
    "load",
    "load_schedule",
    "load_scores",
    "psnr",
    "running",
    "save_images",
    "schedule",
    "score",
    "summary",
    "text",
]

if TYPE_CHECKING:
    from tenuto import text
    from tenuto.comparing import compare
    from tenuto.deciding import schedule
    from tenuto.errors import TenutoError
    from tenuto.models import Model, load
    from tenuto.pipelines.enable import accelerated, configure, disable, enable, running, summary
    from tenuto.quality import psnr
    from tenuto.sampling.masked import MaskedSampling, generate_text
    from tenuto.sampling.pictures import Sampling, generate
    from tenuto.scheduling.schedule import Schedule, load_schedule
    from tenuto.showing.images import save_images

    score: Any
    Scores: Any
    load_scores: Any


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tenuto.{name}")
    if name not in (*_HOMES, *_OFFERED):
        raise AttributeError(f"module 'tenuto' has no attribute {name!r}")
    if name in _OFFERED:
        value = import_module("tenuto.laboratory").offered(name)
    else:
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
