"""Nodes for the picture in docs/comfyui.md: this project's tiny-sdxl as a model of ComfyUI. Not part of the node pack.

ComfyUI loads this folder from its custom_nodes (benchmarks/comfy_screenshot.py puts a link there).
"""

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parent.parent.parent))


class TinyModel:
    CATEGORY, FUNCTION = "tenuto/demonstration", "make"
    RETURN_TYPES = ("MODEL", "CONDITIONING", "CONDITIONING", "LATENT")
    RETURN_NAMES = ("model", "positive", "negative", "latent")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"pictures": ("INT", {"default": 4, "min": 1, "max": 8})}}

    def make(self, pictures: int) -> tuple[Any, ...]:
        import comfy  # type: ignore[import-not-found]

        from benchmarks.comfy_models import Studio

        studio = Studio(comfy, "trained", pictures)
        return studio.model, studio.positive, studio.negative, {"samples": torch.zeros(pictures, 3, 32, 32)}


class LatentAsPicture:
    CATEGORY, FUNCTION, RETURN_TYPES = "tenuto/demonstration", "show", ("IMAGE",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"samples": ("LATENT",)}}

    def show(self, samples: dict[str, torch.Tensor]) -> tuple[torch.Tensor]:
        pixels = (samples["samples"].clamp(-1, 1) + 1) / 2
        return (pixels.movedim(1, -1).repeat_interleave(8, 1).repeat_interleave(8, 2),)


NODE_CLASS_MAPPINGS = {"TenutoTinyModel": TinyModel, "TenutoLatentAsPicture": LatentAsPicture}
NODE_DISPLAY_NAME_MAPPINGS = {"TenutoTinyModel": "tiny-sdxl", "TenutoLatentAsPicture": "Latent as picture"}
