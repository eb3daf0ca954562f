"""Pipelines that no fast test of diffusers builds, made of the parts that the test of a similar pipeline builds.

`tester_for(name)` looks like a test class: the neighbour's components and inputs, and in addition the parts and the
pictures that the neighbour does not have.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

NEIGHBOURS = {
    "ChromaInpaintPipeline": "ChromaImg2ImgPipeline",
    "CogView4ControlPipeline": "CogView4Pipeline",
    "DDPMPipeline": "DDIMPipeline",
    "EasyAnimateControlPipeline": "EasyAnimatePipeline",
    "EasyAnimateInpaintPipeline": "EasyAnimatePipeline",
    "HeliosPyramidPipeline": "HeliosPipeline",
    "HunyuanVideo15ImageToVideoPipeline": "HunyuanVideo15Pipeline",
    "LTXI2VLongMultiPromptPipeline": "LTXPipeline",
    "LucyEditPipeline": "WanPipeline",
    "QwenImageControlNetInpaintPipeline": "QwenImageControlNetPipeline",
    "QwenImageEditInpaintPipeline": "QwenImageEditPipeline",
    "QwenImageLayeredPipeline": "QwenImageEditPipeline",
    "StableAudio3AudioToAudioPipeline": "StableAudio3Pipeline",
    "StableAudio3InpaintPipeline": "StableAudio3Pipeline",
    "StableDiffusionUpscalePipeline": "StableDiffusionImg2ImgPipeline",
    "StableDiffusionXLControlNetUnionImg2ImgPipeline": "StableDiffusionXLControlNetImg2ImgPipeline",
    "StableDiffusionXLControlNetUnionInpaintPipeline": "StableDiffusionXLControlNetInpaintPipeline",
    "StableDiffusionXLControlNetUnionPipeline": "StableDiffusionXLControlNetPipeline",
    "ZImageControlNetInpaintPipeline": "ZImageInpaintPipeline",
    "ZImageControlNetPipeline": "ZImagePipeline",
    "ZImageOmniPipeline": "ZImagePipeline",
}


def __getattr__(name: str) -> type:
    if name in NEIGHBOURS:
        return tester_for(name)
    raise AttributeError(name)


def tester_for(name: str) -> type:
    """What a test class of diffusers offers, for this pipeline."""
    import diffusers

    kind, neighbour = getattr(diffusers, name), test_of(NEIGHBOURS[name])

    class Tester:
        pipeline_class = kind

        def get_dummy_components(self) -> dict[str, Any]:
            given = called(neighbour.get_dummy_components)
            wanted = inspect.signature(kind.__init__).parameters
            made = {key: part for key, part in given.items() if key in wanted}
            made |= {key: make(given) for key, make in PARTS.get(name, {}).items()}
            empty = {key: None for key in wanted if key in OPTIONAL and key not in made}
            return made | empty

        def get_dummy_inputs(self, device: str) -> dict[str, Any]:
            given = called(neighbour.get_dummy_inputs)
            wanted = inspect.signature(kind.__call__).parameters
            made = {key: one for key, one in given.items() if key in wanted}
            return {**made, **{key: make(given) for key, make in INPUTS.get(name, {}).items()}}

    return Tester


def test_of(pipeline: str) -> Any:
    """The test of a pipeline that makes its components."""
    from benchmarks.coverage.cases import pipeline_of

    for module in [name for name in sys.modules if name.startswith("tests.pipelines.")]:
        for tester in vars(importlib.import_module(module)).values():
            made = pipeline_of(tester) if isinstance(tester, type) else None
            if made is not None and made.__name__ == pipeline and hasattr(tester, "get_dummy_components"):
                return tester()
    raise LookupError(f"no fast test makes the components of a {pipeline}")


def called(function: Callable[..., Any]) -> Any:
    """Call a method of a test; some want the device, some do not."""
    return function(device="cpu") if "device" in inspect.signature(function).parameters else function()


def picture(side: int = 32, mode: str = "RGB") -> Callable[[dict[str, Any]], Any]:
    def make(given: dict[str, Any]) -> Any:
        import numpy as np
        from PIL import Image

        values = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
        return Image.fromarray(values).convert(mode)

    return make


def frames(count: int = 9, side: int = 16) -> Callable[[dict[str, Any]], Any]:
    return lambda given: [picture(side)(given) for _ in range(count)]


def sound(given: dict[str, Any]) -> Any:
    import torch

    return torch.randn(1, 2, 4096, generator=torch.Generator().manual_seed(0))


def union(given: dict[str, Any]) -> Any:
    """A ControlNet-Union of the size of the SDXL UNet that the tests build."""
    import diffusers
    import torch

    torch.manual_seed(0)
    own = inspect.signature(diffusers.ControlNetUnionModel.__init__).parameters
    config = {key: value for key, value in given["controlnet"].config.items() if key in own and key[0] != "_"}
    return diffusers.ControlNetUnionModel(**config, num_trans_channel=32, num_trans_head=2, num_proj_channel=32)


def z_control(given: dict[str, Any]) -> Any:
    """A ControlNet of the size of the Z-Image transformer that the tests build."""
    import diffusers
    import torch

    torch.manual_seed(0)
    net = given["transformer"].config
    names = inspect.signature(diffusers.ZImageControlNetModel.__init__).parameters
    config = {key: net[key] for key in names if key in net}
    return diffusers.ZImageControlNetModel(
        **{**config, "control_layers_places": [0, 1], "control_in_dim": net["in_channels"] * 2 + 1}
    )


def wider(channels: int) -> Callable[[dict[str, Any]], Any]:
    """The denoiser with so many input channels."""

    def make(given: dict[str, Any]) -> Any:
        import torch

        torch.manual_seed(0)
        net: Any = given.get("transformer", given.get("unet"))
        return type(net).from_config({**net.config, "in_channels": channels})

    return make


def low_res(given: dict[str, Any]) -> Any:
    from diffusers import DDPMScheduler

    return DDPMScheduler()


def siglip(given: dict[str, Any]) -> Any:
    import transformers

    small: dict[str, Any] = {
        "hidden_size": 12,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
    }
    return transformers.SiglipVisionModel(transformers.SiglipVisionConfig(image_size=30, patch_size=2, **small))


def masked(given: dict[str, Any]) -> Any:
    """The ControlNet with room for a mask beside the picture."""
    import torch

    torch.manual_seed(0)
    return type(given["controlnet"]).from_config({**given["controlnet"].config, "extra_condition_channels": 4})


def siglip_processor(given: dict[str, Any]) -> Any:
    import transformers

    return transformers.SiglipImageProcessor(size={"height": 30, "width": 30})


OPTIONAL = ("siglip", "siglip_processor", "image_encoder", "feature_extractor", "safety_checker", "watermarker")
CONTROLLED: dict[str, Callable[[dict[str, Any]], Any]] = {"controlnet": union}
SDXL = {"control_image": picture(64), "control_mode": lambda given: 0}
PARTS: dict[str, dict[str, Callable[[dict[str, Any]], Any]]] = {
    "CogView4ControlPipeline": {"transformer": wider(8)},
    "HunyuanVideo15ImageToVideoPipeline": {"image_encoder": siglip, "feature_extractor": siglip_processor},
    "LucyEditPipeline": {"transformer": wider(32)},
    "QwenImageControlNetInpaintPipeline": {"controlnet": masked},
    "StableDiffusionUpscalePipeline": {"low_res_scheduler": low_res, "unet": wider(7)},
    "StableDiffusionXLControlNetUnionImg2ImgPipeline": CONTROLLED,
    "StableDiffusionXLControlNetUnionInpaintPipeline": CONTROLLED,
    "StableDiffusionXLControlNetUnionPipeline": CONTROLLED,
    "ZImageControlNetInpaintPipeline": {"controlnet": z_control},
    "ZImageControlNetPipeline": {"controlnet": z_control},
}
INPUTS: dict[str, dict[str, Callable[[dict[str, Any]], Any]]] = {
    "ChromaInpaintPipeline": {"image": picture(), "mask_image": picture(mode="L")},
    "CogView4ControlPipeline": {"control_image": picture(16)},
    "EasyAnimateControlPipeline": {"control_video": frames(5)},
    "HunyuanVideo15ImageToVideoPipeline": {"image": picture(16)},
    "LTXI2VLongMultiPromptPipeline": {"cond_image": picture()},
    "LucyEditPipeline": {"video": frames()},
    "QwenImageControlNetInpaintPipeline": {"control_image": picture(), "control_mask": picture(mode="L")},
    "QwenImageEditInpaintPipeline": {"mask_image": picture(mode="L")},
    "StableAudio3AudioToAudioPipeline": {"audio": sound},
    "StableAudio3InpaintPipeline": {"audio": sound},
    "StableDiffusionUpscalePipeline": {"image": picture()},
    "StableDiffusionXLControlNetUnionImg2ImgPipeline": SDXL,
    "StableDiffusionXLControlNetUnionInpaintPipeline": SDXL,
    "StableDiffusionXLControlNetUnionPipeline": SDXL,
    "ZImageControlNetInpaintPipeline": {"control_image": picture()},
    "ZImageControlNetPipeline": {"control_image": picture()},
}
