"""diffusers' UNets and DiT, written against the seam: which of their modules are units, and their forwards.

The other transformers are in `transformer_blocks`; `sites_of` knows them all.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from diffusers import DiTTransformer2DModel, Transformer2DModel, UNet2DConditionModel
from diffusers.models.resnet import ResnetBlock2D
from torch import Tensor, nn

from tenuto.errors import TenutoError
from tenuto.models.diffusers.private_diffusers import run_feed_forward
from tenuto.runtime.compilation import branch_function, function_of_many_shapes
from tenuto.runtime.residual import Deferred, Residual
from tenuto.scheduling.units import Component, Matrix, Unit
from tenuto_lab.seam import transformer_blocks
from tenuto_lab.seam.sites import TEXT_TOKENS, Site, attention_unit, mlp_unit

SAMPLE_SIZE = 64  # costs assume this size if a UNet's config has none

# Stages whose blocks run as pairs of (resnets[i], attentions[i]); other stages wire them differently.
PAIRED_STAGES = (
    "DownBlock2D",
    "CrossAttnDownBlock2D",
    "ResnetDownsampleBlock2D",
    "UpBlock2D",
    "CrossAttnUpBlock2D",
    "ResnetUpsampleBlock2D",
)
MIDDLE_STAGES = ("UNetMidBlock2DCrossAttn", "UNetMidBlock2D")  # resnets[0], then (attentions[i], resnets[i + 1])


def _dit_sites(dit: Any) -> Iterator[Site]:
    tokens = (dit.config.sample_size // dit.config.patch_size) ** 2
    return (_dit_site(i, block, tokens) for i, block in enumerate(dit.transformer_blocks))


def unknown_units(kind: str) -> str:
    known = ", ".join(denoiser.__name__ for denoiser in DENOISERS)
    return f"The units of a {kind} are not known: its output can be held, but no unit held or scored. Known: {known}."


def sites_of(module: nn.Module) -> tuple[Site, ...]:
    """Every block of a denoiser that holds units, in the order they run."""
    sites = next((sites for kind, sites in DENOISERS.items() if isinstance(module, kind)), None)
    if sites is None:
        raise TenutoError(unknown_units(type(module).__name__))
    found = tuple(sites(module))
    if not any(site.units for site in found):
        raise TenutoError(f"This {type(module).__name__} has no residual block that could be held.")
    return found


def _unet_sites(unet: Any) -> Iterator[Site]:
    size = unet.config.sample_size or SAMPLE_SIZE
    height, width = (size, size) if isinstance(size, int) else size
    sizes = [(height, width)]  # of each level, finest first
    for i, stage in enumerate(unet.down_blocks):
        yield from _stage_sites(f"down_blocks.{i}", stage, sizes[-1])
        if getattr(stage, "downsamplers", None) is not None:
            sizes.append((-(-sizes[-1][0] // 2), -(-sizes[-1][1] // 2)))
    if unet.mid_block is not None:
        yield from _stage_sites("mid_block", unet.mid_block, sizes[-1])
    for i, stage in enumerate(unet.up_blocks):
        yield from _stage_sites(f"up_blocks.{i}", stage, sizes[-1])
        if getattr(stage, "upsamplers", None) is not None:
            sizes.pop()


def _stage_sites(path: str, stage: Any, size: tuple[int, int]) -> Iterator[Site]:
    kind = type(stage).__name__
    if kind not in PAIRED_STAGES + MIDDLE_STAGES:
        raise TenutoError(
            f"{path} is a {kind}, whose residual branches are not known; known are "
            f"{', '.join(PAIRED_STAGES + MIDDLE_STAGES)}."
        )
    resnets = [(f"{path}.resnets.{i}", block) for i, block in enumerate(stage.resnets)]
    attentions = [(f"{path}.attentions.{i}", block) for i, block in enumerate(getattr(stage, "attentions", ()))]
    positions = size[0] * size[1]
    first = 1 if kind in MIDDLE_STAGES else 0
    for name, resnet in resnets[:first]:
        yield from _resnet_sites(name, resnet, positions)
    for i in range(max(len(resnets) - first, len(attentions))):
        resnet = [_resnet_sites(*found, positions) for found in resnets[first:][i : i + 1]]
        attention = [_attention_sites(*found, positions) for found in attentions[i : i + 1]]
        for sites in (attention + resnet) if kind in MIDDLE_STAGES else (resnet + attention):
            yield from sites


def _attention_sites(path: str, module: Any, tokens: int) -> Iterator[Site]:
    if module is None:
        return
    if not isinstance(module, Transformer2DModel):
        raise TenutoError(f"{path} is a {type(module).__name__}, whose residual branches are not known.")
    yield Site(path, path, module, (), enter_forward, "_operate_on_continuous_inputs")
    for i, block in enumerate(module.transformer_blocks):
        yield _transformer_site(f"{path}.transformer_blocks.{i}", block, tokens)
    yield Site(path, path, module, (), leave_forward, "_get_output_for_continuous_inputs")


def _transformer_site(path: str, block: Any, tokens: int) -> Site:
    if block.norm_type != "layer_norm" or block.pos_embed is not None:
        raise TenutoError(f"{path} normalises by {block.norm_type!r}; only layer_norm is known in a UNet.")
    units = [_attention_unit(f"{path}.attn1", f"{path}.attn1", block.attn1, tokens)]
    if block.attn2 is not None:
        units.append(_attention_unit(f"{path}.attn2", f"{path}.attn2", block.attn2, tokens))
    units.append(mlp_unit(f"{path}.ff", f"{path}.ff", block.ff, tokens))
    return Site(path, path, block, tuple(units), transformer_forward)


def _dit_site(index: int, block: Any, tokens: int) -> Site:
    """Units are named as in the original DiT, so that one schedule fits both implementations."""
    path, name = f"transformer_blocks.{index}", f"blocks.{index}"
    if block.norm_type != "ada_norm_zero" or block.attn2 is not None or block.pos_embed is not None:
        raise TenutoError(f"{path} normalises by {block.norm_type!r}; only ada_norm_zero is known in a DiT.")
    units = (
        _attention_unit(f"{name}.attn", f"{path}.attn1", block.attn1, tokens),
        mlp_unit(f"{name}.mlp", f"{path}.ff", block.ff, tokens),
    )
    return Site(path, name, block, units, dit_forward)


def _resnet_sites(path: str, block: Any, positions: int) -> Iterator[Site]:
    if not isinstance(block, ResnetBlock2D):
        raise TenutoError(f"{path} is a {type(block).__name__}, whose residual branch is not known.")
    if block.upsample is not None or block.downsample is not None:
        return  # changes its input's shape: not a residual update
    convolutions = {name: getattr(block, name).weight for name in ("conv1", "conv2")}
    components = tuple(Component("conv", {"kernel": Matrix.whole(f"{path}.{name}.weight")}) for name in convolutions)
    flops = sum(2 * positions * kernel.numel() for kernel in convolutions.values())
    if block.time_emb_proj is not None:
        flops += 2 * block.time_emb_proj.weight.numel()
    unit = Unit(path, components, float(flops))
    yield Site(path, path, block, (unit,), resnet_forward)


def _attention_unit(name: str, path: str, attention: Any, tokens: int) -> Unit:
    return attention_unit(
        name,
        path,
        width=attention.query_dim,
        inner=attention.inner_dim,
        heads=attention.heads,
        tokens=tokens,
        context=TEXT_TOKENS if attention.is_cross_attention else None,
        context_width=attention.cross_attention_dim,
    )


def transformer_forward(
    block: Any,
    name: str,
    residual: Residual,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
    timestep: Tensor | None = None,
    cross_attention_kwargs: dict[str, Any] | None = None,
    class_labels: Tensor | None = None,
    added_cond_kwargs: dict[str, Tensor] | None = None,
) -> Tensor:
    """BasicTransformerBlock with layer norms: self-attention, cross-attention, feed-forward."""
    options = dict(cross_attention_kwargs or {})
    grounding = options.pop("gligen", None)

    first_context = encoder_hidden_states if block.only_cross_attention else None
    h1 = residual(
        f"{name}.attn1",
        hidden_states,
        lambda: attend(block.norm1, block.attn1, hidden_states, first_context, attention_mask, **options),
    )
    if grounding is not None:
        h1 = block.fuser(h1, grounding["objs"])
    h2 = h1
    if block.attn2 is not None:
        context, mask = encoder_hidden_states, encoder_attention_mask
        h2 = residual(f"{name}.attn2", h1, lambda: attend(block.norm2, block.attn2, h1, context, mask, **options))
    return residual(f"{name}.ff", h2, lambda: feed_forward(block, h2))


def dit_forward(
    block: Any,
    name: str,
    residual: Residual,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
    timestep: Tensor | None = None,
    cross_attention_kwargs: dict[str, Any] | None = None,
    class_labels: Tensor | None = None,
    added_cond_kwargs: dict[str, Tensor] | None = None,
) -> Tensor:
    """BasicTransformerBlock with AdaLN-Zero: attention and feed-forward, both shifted, scaled and gated."""
    hidden_states = hidden_states.contiguous()  # patches have the pixels' memory layout, and every norm would copy them
    norm1 = block.norm1

    def modulation() -> tuple[Tensor, ...]:
        c = norm1.emb(timestep, class_labels, hidden_dtype=hidden_states.dtype)
        return norm1.linear(norm1.silu(c)).chunk(6, dim=1)

    # (shift, scale, gate) of attention, then of the MLP, each [B, D]
    m = Deferred(modulation)

    options = cross_attention_kwargs or {}
    h1 = residual(
        f"{name}.attn",
        hidden_states,
        lambda: attend_modulated(block, hidden_states, m[0], m[1], attention_mask, **options),
        gate=lambda: m[2].unsqueeze(1),
    )
    return residual(
        f"{name}.mlp", h1, lambda: feed_forward_modulated(block, h1, m[3], m[4]), gate=lambda: m[5].unsqueeze(1)
    )


@function_of_many_shapes
def attend(norm: Any, attention: Any, x: Tensor, context: Tensor | None, mask: Tensor | None, **options: Any) -> Tensor:
    return attention(norm(x), encoder_hidden_states=context, attention_mask=mask, **options)


@branch_function
def attend_modulated(
    block: Any, x: Tensor, shift: Tensor, scale: Tensor, mask: Tensor | None, **options: Any
) -> Tensor:
    return block.attn1(block.norm1.norm(x) * (1 + scale[:, None]) + shift[:, None], attention_mask=mask, **options)


@function_of_many_shapes
def feed_forward(block: Any, x: Tensor) -> Tensor:
    return run_feed_forward(block, block.ff, block.norm3(x))


@branch_function
def feed_forward_modulated(block: Any, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return run_feed_forward(block, block.ff, block.norm3(x) * (1 + scale[:, None]) + shift[:, None])


def enter_forward(transformer: Any, name: str, residual: Residual, image: Tensor) -> tuple[Tensor, int]:
    """The start of a UNet's transformer: from a picture to tokens."""
    width = image.shape[1] if transformer.use_linear_projection else transformer.proj_in.out_channels
    return enter(transformer, image), width


@function_of_many_shapes
def enter(transformer: Any, image: Tensor) -> Tensor:
    x = transformer.norm(image)
    if transformer.use_linear_projection:
        return transformer.proj_in(x.permute(0, 2, 3, 1).flatten(1, 2))
    return transformer.proj_in(x).permute(0, 2, 3, 1).flatten(1, 2)


def leave_forward(
    transformer: Any, name: str, seam: Residual, /, hidden_states: Tensor, residual: Tensor, **sizes: int
) -> Tensor:
    """The end of a UNet's transformer: from tokens to a picture. diffusers passes the input picture as `residual`."""
    return leave(transformer, hidden_states, residual)


@function_of_many_shapes
def leave(transformer: Any, x: Tensor, image: Tensor) -> Tensor:
    size = image.shape[2:]
    # The first operand decides over the memory layout of the sum, which must be diffusers', also with channels last.
    if transformer.use_linear_projection:
        x = transformer.proj_out(x).unflatten(1, size).permute(0, 3, 1, 2)
        return image + x if image.is_contiguous() else x.contiguous() + image
    x = x.unflatten(1, size).permute(0, 3, 1, 2)
    return image + transformer.proj_out(x if image.stride(1) == 1 else x.contiguous())


def resnet_forward(
    block: Any,
    name: str,
    residual: Residual,
    input_tensor: Tensor,
    temb: Tensor | None = None,
    *args: Any,  # deprecated and without effect, as in the original
    **kwargs: Any,
) -> Tensor:
    """ResnetBlock2D of one resolution; a shortcut convolution is part of the stream, and stays live."""
    live = input_tensor
    if block.conv_shortcut is not None:
        live = block.conv_shortcut(live.contiguous() if block.training else live)
    h = residual(name, live, lambda: convolve(block, input_tensor, temb))
    return h if block.output_scale_factor == 1 else h / block.output_scale_factor


@function_of_many_shapes
def convolve(block: Any, x: Tensor, temb: Tensor | None) -> Tensor:
    x = block.conv1(block.nonlinearity(block.norm1(x)))
    shift = temb
    if block.time_emb_proj is not None:
        shift = block.time_emb_proj(temb if block.skip_time_act else block.nonlinearity(temb))[:, :, None, None]
    if block.time_embedding_norm == "scale_shift":
        assert shift is not None
        scale, shift = torch.chunk(shift, 2, dim=1)
        x = block.norm2(x) * (1 + scale) + shift
    else:
        x = block.norm2(x if shift is None else x + shift)
    return block.conv2(block.dropout(block.nonlinearity(x)))


# The known denoisers, and the function that finds the sites of each.
DENOISERS: dict[type[nn.Module], Callable[[Any], Iterator[Site]]] = {
    UNet2DConditionModel: _unet_sites,
    DiTTransformer2DModel: _dit_sites,
    **transformer_blocks.DENOISERS,
}
