"""ComfyUI's own code, loaded from a checkout, with small random models of two kinds: what a sampling needs.

The checkout is a folder of its own (`git clone https://github.com/comfyanonymous/ComfyUI`), never part of this project.
"""

import contextlib
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tenuto
from benchmarks.places import ROOT

PACK = ROOT / "integrations" / "comfyui"
NAME = "tenuto_comfyui"  # the module that the node pack is loaded as
DECLARED: Any = None  # the operators of torchvision that were declared
UNET: dict[str, Any] = {
    "image_size": 8, "in_channels": 4, "out_channels": 4, "model_channels": 32, "num_res_blocks": [1, 1],
    "channel_mult": [1, 2], "transformer_depth": [1, 1], "transformer_depth_output": [1, 1, 1, 1],
    "transformer_depth_middle": 1, "num_heads": 2, "use_spatial_transformer": True, "context_dim": 16,
    "use_linear_in_transformer": False, "adm_in_channels": None, "use_temporal_attention": False, "legacy": False,
    "dtype": torch.float32,
}  # fmt: skip
FLUX: dict[str, Any] = {
    "image_model": "flux", "in_channels": 4, "out_channels": 4, "patch_size": 2, "vec_in_dim": 8, "context_in_dim": 16,
    "hidden_size": 32, "mlp_ratio": 2.0, "num_heads": 2, "depth": 1, "depth_single_blocks": 1, "axes_dim": [4, 6, 6],
    "theta": 10000, "qkv_bias": True, "guidance_embed": False, "txt_ids_dims": [], "dtype": torch.float32,
}  # fmt: skip


CAPTIONS = [
    "a red car",
    "a bird",
    "a green frog",
    "a cargo ship",
    "a brown horse",
    "an airplane",
    "a fire truck",
    "a deer",
]


def declare_operators() -> Any:
    """Let torchvision be imported where its compiled operators do not fit the installed torch (PyPI has no CPU build).

    ComfyUI imports torchvision, but no sampling calls these operators. Only their names are declared: a call fails.
    Returns what keeps the names declared; None if there was nothing to do.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return None
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")
        return declared
    return None


def load_comfy(checkout: Path) -> Any:
    """ComfyUI's package `comfy`, on the CPU."""
    global DECLARED
    DECLARED = DECLARED or declare_operators()
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    options = importlib.import_module("comfy.options")
    before, sys.argv = sys.argv, ["comfyui", "--cpu"]
    try:
        options.enable_args_parsing()
        for name in ("samplers", "sample", "model_base", "model_patcher", "supported_models", "controlnet"):
            importlib.import_module(f"comfy.{name}")
    finally:
        sys.argv = before
    return sys.modules["comfy"]


def load_pack() -> Any:
    """The node pack, loaded from its folder as ComfyUI loads it."""
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            NAME, PACK / "__init__.py", submodule_search_locations=[str(PACK)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    return sys.modules[NAME]


class Studio:
    """A small model of ComfyUI, and everything that a sampling with it needs.

    kind  unet: random, predicts noise; flux: random, a flow; trained: this project's tiny-sdxl, which draws pictures
    """

    def __init__(self, comfy: Any, kind: str, batch: int = 1) -> None:
        self.comfy, self.kind = comfy, kind
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(1)
        if kind == "trained":
            self.network, positive, negative = trained(comfy, batch)
            self.noise = torch.randn(batch, 3, 32, 32, generator=generator)
            self.positive, self.negative = [[positive, {}]], [[negative, {}]]
        else:
            self.network = random_network(comfy, kind)
            self.noise = torch.randn(batch, 4, 8, 8, generator=generator)
            more = {} if kind == "unet" else {"pooled_output": torch.randn(1, 8, generator=generator)}
            self.positive = [[torch.randn(1, 7, 16, generator=generator), dict(more)]]
            self.negative = [[torch.randn(1, 7, 16, generator=generator), dict(more)]]
        cpu = torch.device("cpu")
        self.model = comfy.model_patcher.ModelPatcher(self.network, load_device=cpu, offload_device=cpu)

    def draw(self, model: Any = None, sampler: str = "euler", steps: int = 20, **options: Any) -> Tensor:
        """What ComfyUI's KSampler node does."""
        given: dict[str, Any] = {"cfg": 3.0, "scheduler": "normal" if self.kind == "unet" else "simple", "seed": 5}
        given |= {"positive": self.positive, "negative": self.negative, "latent_image": torch.zeros_like(self.noise)}
        given |= {"noise": self.noise, "disable_pbar": True, "denoise": 1.0, **options}
        return self.comfy.sample.sample(
            model or self.model, given.pop("noise"), steps, given.pop("cfg"), sampler, given.pop("scheduler"),
            given.pop("positive"), given.pop("negative"), given.pop("latent_image"), **given,
        )  # fmt: skip

    @contextlib.contextmanager
    def counting(self) -> Iterator[list[int]]:
        """Counts the evaluations of the network; those with and without the prompt are one if they are one batch."""
        count = [0]

        def add(*_: Any) -> None:
            count[0] += 1

        handle = self.network.diffusion_model.register_forward_hook(add)
        try:
            yield count
        finally:
            handle.remove()


def random_network(comfy: Any, kind: str) -> Any:
    settings, configs = (UNET, comfy.supported_models.SD15) if kind == "unet" else (FLUX, comfy.supported_models.Flux)
    config = configs(dict(settings))
    config.unet_config = dict(settings)
    network = (comfy.model_base.BaseModel if kind == "unet" else comfy.model_base.Flux)(config, device="cpu")
    for name, parameter in network.named_parameters():  # ComfyUI leaves them as the memory was
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.7 / math.sqrt(parameter[0].numel()))
        else:
            nn.init.constant_(parameter, float(name.endswith(("weight", "scale"))))
    return network.eval().requires_grad_(False)


class InComfy(nn.Module):
    """tiny-sdxl with the call of a network of ComfyUI. The pooled text comes as the last token of the context."""

    dtype = torch.float32

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.inside = tenuto.load("tiny-sdxl").network

    def forward(self, x: Tensor, timesteps: Tensor, context: Tensor, **_: Any) -> Tensor:
        sizes = torch.tensor([32.0, 32, 0, 0, 32, 32]).expand(len(x), 6)
        added = {"text_embeds": context[:, -1], "time_ids": sizes}
        return self.inside(x, timesteps, context[:, :-1], added_cond_kwargs=added)


def trained(comfy: Any, batch: int) -> tuple[Any, Tensor, Tensor]:
    """(the network, what stands for the prompt, what stands for the empty prompt)."""
    from tenuto.sampling.pictures import _caption_conditions

    class Pixels(comfy.latent_formats.LatentFormat):  # type: ignore[misc]
        latent_channels, scale_factor = 3, 1.0

    config = comfy.supported_models.SD15(dict(UNET))
    config.unet_config, config.latent_format = {"in_channels": 3, "dtype": torch.float32}, Pixels()
    network = comfy.model_base.BaseModel(config, device="cpu", unet_model=InComfy)
    model = tenuto.load("tiny-sdxl")
    words, named = _caption_conditions(model, CAPTIONS[:batch], True)
    context = torch.cat([words, named["text_embeds"][:, None]], 1)
    return network.eval().requires_grad_(False), context[:batch], context[batch:]


def held(studio: Studio, tell: Callable[[Any], None] | None = None, **wish: Any) -> Any:
    """The studio's model with the node behind it."""
    load_pack()
    node = importlib.import_module(f"{NAME}.node")
    return node.patched(studio.model, node.Wish(**wish), tell or (lambda report: None))
