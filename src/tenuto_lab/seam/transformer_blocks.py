"""diffusers' text-to-image and text-to-video transformers, written against the seam: PixArt, SD3, FLUX and Wan.

Blocks of SD3 and FLUX have two streams, the picture's and the text's, which meet in one joint attention. Each stream's
additions are separate units: `attn` is what the joint attention adds to the picture, `attn_context` what it adds to
the text. The joint attention is computed once for both units; if only one of them is computed, it still runs in full.
A single block of FLUX has one stream, the text before the picture, and one branch: attention and MLP side by side,
with a shared output projection. This branch is one unit, an atomic group; its score uses the projection for both parts.

Costs are for the default sizes of the published pipelines.
"""

from collections.abc import Callable, Iterator
from typing import Any

from diffusers import FluxTransformer2DModel, PixArtTransformer2DModel, SD3Transformer2DModel, WanTransformer3DModel
from diffusers.models.attention import JointTransformerBlock
from diffusers.models.transformers.transformer_flux import (
    FluxIPAdapterAttnProcessor,
    FluxSingleTransformerBlock,
    FluxTransformerBlock,
)
from diffusers.models.transformers.transformer_wan import WanTransformerBlock
from torch import Tensor, cat, float16, nn

from tenuto.errors import TenutoError
from tenuto.models.diffusers.private_diffusers import run_feed_forward
from tenuto.runtime.compilation import at_once, branch_function
from tenuto.runtime.residual import Deferred, Residual
from tenuto.scheduling.units import Component, Matrix, Unit
from tenuto_lab.seam.sites import ADDED_PROJECTIONS, Site, attention_unit, mlp_unit

BLOCKS = (JointTransformerBlock, FluxTransformerBlock, FluxSingleTransformerBlock, WanTransformerBlock)

PIXART_TEXT = 300  # tokens of PixArt-Σ's prompts
SD3_TEXT = 77 + 256  # tokens of CLIP's and of T5's prompts
FLUX_TEXT, FLUX_TOKENS = 512, 64 * 64  # 1024 × 1024 pixels
WAN_TEXT, WAN_TOKENS = 512, 21 * 30 * 52  # 81 frames of 480 × 832 pixels


# ----------------------------------------------------------------------------------------------------------- PixArt


def _pixart_sites(pixart: Any) -> Iterator[Site]:
    tokens = (pixart.config.sample_size // pixart.config.patch_size) ** 2
    for i, block in enumerate(pixart.transformer_blocks):
        path = f"transformer_blocks.{i}"
        if block.norm_type != "ada_norm_single" or block.attn2 is None or block.pos_embed is not None:
            raise TenutoError(f"{path} normalises by {block.norm_type!r}; only ada_norm_single is known in PixArt.")
        first, second = block.attn1, block.attn2
        sizes = {"width": first.query_dim, "inner": first.inner_dim, "heads": first.heads, "tokens": tokens}
        crossing = {"context": PIXART_TEXT, "context_width": second.cross_attention_dim}
        units = (
            attention_unit(f"{path}.attn1", f"{path}.attn1", **sizes),
            attention_unit(f"{path}.attn2", f"{path}.attn2", **sizes, **crossing),
            mlp_unit(f"{path}.ff", f"{path}.ff", block.ff, tokens),
        )
        yield Site(path, path, block, units, pixart_forward)


def pixart_forward(
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
    """BasicTransformerBlock with one AdaLN for all blocks: attention, cross-attention without a norm, feed-forward."""
    options = cross_attention_kwargs or {}
    hidden_states = hidden_states.contiguous()  # patches have the pixels' memory layout, and every norm would copy them

    def modulation() -> tuple[Tensor, ...]:
        assert timestep is not None
        return (block.scale_shift_table[None] + timestep.reshape(len(hidden_states), 6, -1)).chunk(6, dim=1)

    # (shift, scale, gate) of attention, then of the feed-forward, each [B, 1, D]
    m = Deferred(modulation)
    h1 = residual(
        f"{name}.attn1",
        hidden_states,
        lambda: attend_shifted(block, hidden_states, m[0], m[1], attention_mask, **options),
        gate=lambda: m[2],
    )
    h2 = residual(
        f"{name}.attn2",
        h1,
        lambda: attend_across(block, h1, encoder_hidden_states, encoder_attention_mask, **options),
    )
    return residual(f"{name}.ff", h2, lambda: feed_forward_shifted(block, h2, m[3], m[4]), gate=lambda: m[5])


@branch_function
def attend_shifted(block: Any, x: Tensor, shift: Tensor, scale: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    return block.attn1(block.norm1(x) * (1 + scale) + shift, attention_mask=mask, **options)


@branch_function
def attend_across(block: Any, x: Tensor, context: Tensor | None, mask: Tensor | None, **options: Any) -> Tensor:
    return block.attn2(x, encoder_hidden_states=context, attention_mask=mask, **options)


@branch_function
def feed_forward_shifted(block: Any, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return run_feed_forward(block, block.ff, block.norm2(x) * (1 + scale) + shift)


# -------------------------------------------------------------------------------------------------------- SD3, FLUX


def _sd3_sites(sd3: Any) -> Iterator[Site]:
    tokens = (sd3.config.sample_size // sd3.config.patch_size) ** 2
    for i, block in enumerate(sd3.transformer_blocks):
        path = f"transformer_blocks.{i}"
        yield Site(path, path, block, tuple(_joint_units(path, block, tokens, SD3_TEXT)), joint_forward)


def _flux_sites(flux: Any) -> Iterator[Site]:
    for i, block in enumerate(flux.transformer_blocks):
        path = f"transformer_blocks.{i}"
        yield Site(path, path, block, tuple(_joint_units(path, block, FLUX_TOKENS, FLUX_TEXT)), flux_forward)
    for i, block in enumerate(flux.single_transformer_blocks):
        path = f"single_transformer_blocks.{i}"
        yield Site(path, path, block, (_single_unit(path, block),), flux_single_forward)


def _joint_units(path: str, block: Any, tokens: int, text: int) -> Iterator[Unit]:
    attention = block.attn
    sizes = {"width": attention.query_dim, "inner": attention.inner_dim, "heads": attention.heads}
    yield attention_unit(f"{path}.attn", f"{path}.attn", **sizes, tokens=tokens, joint=text)
    if getattr(block, "attn2", None) is not None:
        yield attention_unit(f"{path}.attn2", f"{path}.attn2", **sizes, tokens=tokens)
    yield mlp_unit(f"{path}.ff", f"{path}.ff", block.ff, tokens)
    if block.ff_context is not None:
        yield attention_unit(
            f"{path}.attn_context",
            f"{path}.attn",
            **sizes,
            tokens=text,
            joint=tokens,
            projections=ADDED_PROJECTIONS,
        )
        yield mlp_unit(f"{path}.ff_context", f"{path}.ff_context", block.ff_context, text)


def _single_unit(path: str, block: Any) -> Unit:
    tokens, attention = FLUX_TEXT + FLUX_TOKENS, block.attn
    inner, width, hidden = attention.inner_dim, attention.query_dim, block.mlp_hidden_dim
    out = Matrix.whole(f"{path}.proj_out.weight")
    inward = {role: Matrix.whole(f"{path}.attn.to_{role}.weight") for role in "qkv"}
    components = (
        Component("attention", {**inward, "o": out}, head_dim=attention.head_dim),
        Component("mlp", {"w1": Matrix.whole(f"{path}.proj_mlp.weight"), "w2": out}),
    )
    matrices = 3 * width * inner + width * hidden + (inner + hidden) * width
    return Unit(path, components, float(2 * tokens * matrices + 4 * tokens * tokens * inner))


def joint_forward(
    block: Any,
    name: str,
    residual: Residual,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    joint_attention_kwargs: dict[str, Any] | None = None,
) -> tuple[Tensor | None, Tensor]:
    """JointTransformerBlock: joint attention, an optional attention of the picture alone, and feed-forwards."""
    hidden_states = hidden_states.contiguous()  # diffusers does so itself from 0.40 on; every norm would copy them
    options = joint_attention_kwargs or {}
    # (shift, scale, gate) of attention and of the feed-forward, and of the picture's own attention, each [B, D]
    m, c = Deferred(lambda: modulation(block.norm1, temb)), Deferred(lambda: modulation(block.norm1_context, temb))
    last = block.context_pre_only  # nothing reads the text of the last block

    def attended() -> tuple[Tensor, ...]:
        text = block.norm1_context(encoder_hidden_states, temb) if last else None
        shifts = (None, None) if last else (c[0], c[1])
        return at_once(attend_jointly, block, hidden_states, encoder_hidden_states, text, m[0], m[1], *shifts, options)

    both = Deferred(attended)
    h = residual(f"{name}.attn", hidden_states, lambda: both[0], gate=lambda: m[2].unsqueeze(1))
    if block.use_dual_attention:
        h = residual(
            f"{name}.attn2",
            h,
            lambda: attend_alone(block, hidden_states, m[6], m[7], **options),
            gate=lambda: m[8].unsqueeze(1),
        )
    h = _fed_forward(block, f"{name}.ff", residual, h, block.norm2, block.ff, m)
    if last:
        return None, h
    return _context(block, name, residual, encoder_hidden_states, both, c), h


def flux_forward(
    block: Any,
    name: str,
    residual: Residual,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    joint_attention_kwargs: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """FluxTransformerBlock; an IP adapter's addition to the picture is computed with the attention and stays live."""
    options = {**(joint_attention_kwargs or {}), "image_rotary_emb": image_rotary_emb}
    m, c = Deferred(lambda: modulation(block.norm1, temb)), Deferred(lambda: modulation(block.norm1_context, temb))
    both = Deferred(
        lambda: at_once(
            attend_jointly, block, hidden_states, encoder_hidden_states, None, m[0], m[1], c[0], c[1], options
        )
    )
    h = residual(f"{name}.attn", hidden_states, lambda: both[0], gate=lambda: m[2].unsqueeze(1))
    h = _fed_forward(block, f"{name}.ff", residual, h, block.norm2, block.ff, m)
    if isinstance(block.attn.processor, FluxIPAdapterAttnProcessor):
        h = h + both[2]
    text = _context(block, name, residual, encoder_hidden_states, both, c)
    return text.clip(-65504, 65504) if text.dtype == float16 else text, h


def _context(block: Any, name: str, residual: Residual, text: Tensor, both: Deferred, c: Deferred) -> Tensor:
    """The part of a joint block that updates the text."""
    h = residual(f"{name}.attn_context", text, lambda: both[1], gate=lambda: c[2].unsqueeze(1))
    return _fed_forward(block, f"{name}.ff_context", residual, h, block.norm2_context, block.ff_context, c)


def _fed_forward(
    block: Any, unit: str, residual: Residual, h: Tensor, norm: nn.Module, feed_forward: nn.Module, m: Deferred
) -> Tensor:
    return residual(
        unit,
        h,
        lambda: feed_forward_modulated(block, norm, feed_forward, h, m[3], m[4]),
        gate=lambda: m[5].unsqueeze(1),
    )


def modulation(norm: Any, temb: Tensor) -> tuple[Tensor, ...]:
    """AdaLN-Zero's numbers from the conditioning: groups of (shift, scale, gate), each [B, D]."""
    numbers = norm.linear(norm.silu(temb))
    return numbers.chunk(numbers.shape[1] // norm.norm.normalized_shape[0], dim=1)


@branch_function
def attend_jointly(
    block: Any,
    image: Tensor,
    text: Tensor,
    ready: Tensor | None,
    shift: Tensor,
    scale: Tensor,
    text_shift: Tensor | None,
    text_scale: Tensor | None,
    options: dict[str, Any],
) -> tuple[Tensor, ...]:
    """ready: the text, if it is already normalised."""
    x = block.norm1.norm(image) * (1 + scale[:, None]) + shift[:, None]
    if ready is None:
        assert text_shift is not None and text_scale is not None
        ready = block.norm1_context.norm(text) * (1 + text_scale[:, None]) + text_shift[:, None]
    return block.attn(hidden_states=x, encoder_hidden_states=ready, **options)


@branch_function
def attend_alone(block: Any, x: Tensor, shift: Tensor, scale: Tensor, **options: Any) -> Tensor:
    return block.attn2(hidden_states=block.norm1.norm(x) * (1 + scale[:, None]) + shift[:, None], **options)


@branch_function
def feed_forward_modulated(
    block: Any, norm: nn.Module, feed_forward: nn.Module, x: Tensor, shift: Tensor, scale: Tensor
) -> Tensor:
    return run_feed_forward(block, feed_forward, norm(x) * (1 + scale[:, None]) + shift[:, None])


def flux_single_forward(
    block: Any,
    name: str,
    residual: Residual,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    joint_attention_kwargs: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """FluxSingleTransformerBlock: attention and MLP side by side on text and picture together."""
    text = encoder_hidden_states.shape[1]
    stream = cat([encoder_hidden_states, hidden_states], dim=1)
    options = {**(joint_attention_kwargs or {}), "image_rotary_emb": image_rotary_emb}
    m = Deferred(lambda: modulation(block.norm, temb))
    h = residual(
        name,
        stream,
        lambda: attend_and_transform(block, stream, m[0], m[1], options),
        gate=lambda: m[2].unsqueeze(1),
    )
    if h.dtype == float16:
        h = h.clip(-65504, 65504)
    return h[:, :text], h[:, text:]


@branch_function
def attend_and_transform(block: Any, x: Tensor, shift: Tensor, scale: Tensor, options: dict[str, Any]) -> Tensor:
    x = block.norm.norm(x) * (1 + scale[:, None]) + shift[:, None]
    hidden = block.act_mlp(block.proj_mlp(x))
    return block.proj_out(cat([block.attn(hidden_states=x, **options), hidden], dim=2))


# -------------------------------------------------------------------------------------------------------------- Wan


def _wan_sites(wan: Any) -> Iterator[Site]:
    for i, block in enumerate(wan.blocks):
        path = f"blocks.{i}"
        first, second = block.attn1, block.attn2
        sizes = {"width": first.to_q.in_features, "inner": first.inner_dim, "heads": first.heads}
        units = (
            attention_unit(f"{path}.attn1", f"{path}.attn1", **sizes, tokens=WAN_TOKENS),
            attention_unit(
                f"{path}.attn2",
                f"{path}.attn2",
                **sizes,
                tokens=WAN_TOKENS,
                context=WAN_TEXT,
                context_width=second.to_k.in_features,
            ),
            mlp_unit(f"{path}.ffn", f"{path}.ffn", block.ffn, WAN_TOKENS),
        )
        yield Site(path, path, block, units, wan_forward)


def wan_forward(
    block: Any,
    name: str,
    residual: Residual,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    rotary_emb: Any,
) -> Tensor:
    """WanTransformerBlock; its gated additions are in float32, because its gates are."""
    hidden_states = hidden_states.contiguous()  # diffusers does so itself from 0.40 on; every norm would copy them

    def modulations() -> tuple[Tensor, ...]:
        if temb.ndim == 4:  # a timestep for each token: [B, S, 6, D]
            numbers = (block.scale_shift_table.unsqueeze(0) + temb.float()).chunk(6, dim=2)
            return tuple(number.squeeze(2) for number in numbers)
        return (block.scale_shift_table + temb.float()).chunk(6, dim=1)

    m = Deferred(modulations)
    h1 = residual(
        f"{name}.attn1",
        hidden_states,
        lambda: wan_attend(block, hidden_states, m[0], m[1], rotary_emb),
        gate=lambda: m[2],
    ).type_as(hidden_states)
    h2 = residual(f"{name}.attn2", h1, lambda: wan_attend_across(block, h1, encoder_hidden_states))
    return residual(f"{name}.ffn", h2, lambda: wan_feed_forward(block, h2, m[3], m[4]), gate=lambda: m[5]).type_as(h2)


@branch_function
def wan_attend(block: Any, x: Tensor, shift: Tensor, scale: Tensor, rotary: Any) -> Tensor:
    return block.attn1((block.norm1(x.float()) * (1 + scale) + shift).type_as(x), None, None, rotary)


@branch_function
def wan_attend_across(block: Any, x: Tensor, context: Tensor) -> Tensor:
    return block.attn2(block.norm2(x.float()).type_as(x), context, None, None)


@branch_function
def wan_feed_forward(block: Any, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return block.ffn((block.norm3(x.float()) * (1 + scale) + shift).type_as(x))


DENOISERS: dict[type[nn.Module], Callable[[Any], Iterator[Site]]] = {
    PixArtTransformer2DModel: _pixart_sites,
    SD3Transformer2DModel: _sd3_sites,
    FluxTransformer2DModel: _flux_sites,
    WanTransformer3DModel: _wan_sites,
}
