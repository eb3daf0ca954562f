"""Tenuto: hold what a diffusion model need not compute again.

    import tenuto
    model = tenuto.load("tiny-dit")
    schedule = tenuto.schedule(model, steps=50, budget=0.25)
    images = tenuto.generate(model, classes=[0, 1, 2], steps=50, schedule=schedule)

Names are imported when they are first used, so that `import tenuto` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "enable": "tenuto.integrations.enable",
    "disable": "tenuto.integrations.enable",
    "accelerated": "tenuto.integrations.enable",
    "summary": "tenuto.integrations.enable",
    "load": "tenuto.models",
    "score": "tenuto.api",
    "schedule": "tenuto.api",
    "generate": "tenuto.samplers.diffusion",
    "generate_text": "tenuto.samplers.masked",
    "psnr": "tenuto.measure.quality",
    "save_images": "tenuto.report.images",
    "Model": "tenuto.models",
    "MaskedSampling": "tenuto.samplers.masked",
    "Sampling": "tenuto.samplers.diffusion",
    "Schedule": "tenuto.schedules",
    "load_schedule": "tenuto.schedules",
    "Scores": "tenuto.scores",
    "load_scores": "tenuto.scores",
    "TenutoError": "tenuto.errors",
}
_MODULES = ("llada",)  # tenuto.llada is there without being imported
__all__ = [
    "MaskedSampling",
    "Model",
    "Sampling",
    "Schedule",
    "Scores",
    "TenutoError",
    "__version__",
    "accelerated",
    "disable",
    "enable",
    "generate",
    "generate_text",
    "llada",
    "load",
    "load_schedule",
    "load_scores",
    "psnr",
    "save_images",
    "schedule",
    "score",
    "summary",
]

if TYPE_CHECKING:
    from tenuto import llada
    from tenuto.api import schedule, score
    from tenuto.errors import TenutoError
    from tenuto.integrations.enable import accelerated, disable, enable, summary
    from tenuto.measure.quality import psnr
    from tenuto.models import Model, load
    from tenuto.report.images import save_images
    from tenuto.samplers.diffusion import Sampling, generate
    from tenuto.samplers.masked import MaskedSampling, generate_text
    from tenuto.schedules import Schedule, load_schedule
    from tenuto.scores import Scores, load_scores


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tenuto.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tenuto' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
