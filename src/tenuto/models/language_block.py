"""The block that masked diffusion language models share: attention to all tokens and a gated MLP, with a KV cache."""

from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tenuto.runtime.compilation import at_once, branch_function
from tenuto.runtime.keys import Keys
from tenuto.runtime.positions import take
from tenuto.runtime.residual import Deferred, Residual

if TYPE_CHECKING:
    from tenuto.models.language import LanguageConfig

Memory = tuple[Keys, Tensor | None] | None


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()  # in bfloat16 the mean of squares would lose most of its digits
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def rotary_angles(places: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines for tokens at these places, [B or 1, N] -> each [B or 1, 1, N, head_dim / 2], in float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=places.device) / head_dim
    angles = places[:, None, :, None] * (1.0 / theta**exponents)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, channel i paired with channel i + head_dim / 2."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class LanguageBlock(nn.Module):
    """Attention to all tokens, earlier and later, and a SwiGLU MLP; each has a norm before it.

    A family provides these layers, as attributes or properties: attn_norm, q_proj, k_proj, v_proj and attn_out;
    ff_norm, ff_proj (the gate), up_proj and ff_out.
    """

    attn_norm: Any
    q_proj: Any
    k_proj: Any
    v_proj: Any
    attn_out: Any
    ff_norm: Any
    ff_proj: Any
    up_proj: Any
    ff_out: Any
    qkv: Tensor | None
    qkv_bias: Tensor | None
    gate_up: Tensor | None

    def __init__(self, name: str, config: "LanguageConfig") -> None:
        super().__init__()
        self.name, self.head_dim = name, config.head_dim
        self.shared = config.n_heads // config.n_kv_heads  # query heads per key head
        # What `fuse` makes: the matrices of q, k and v as one, and those of the gate and of the other input of the MLP.
        for joined in ("qkv", "qkv_bias", "gate_up"):
            self.register_buffer(joined, None, persistent=False)

    def forward(
        self, x: Tensor, rope: Deferred, mask: Tensor | None, residual: Residual, memory: Memory = None
    ) -> Tensor:
        if memory is None:
            attend = partial(self.attend, x)
            h = residual(f"{self.name}.attn", x, lambda rows=None: attend(rope[0], rope[1], mask, *_given(rows)))
        else:
            h = residual(f"{self.name}.attn", x, lambda: self.remember(x, rope[0], rope[1], mask, *memory))
        return residual(f"{self.name}.mlp", h, lambda rows=None: self.feed(h if rows is None else take(h, rows)))

    @branch_function
    def attend(
        self, x: Tensor, cosines: Tensor, sines: Tensor, mask: Tensor | None, rows: Tensor | None = None
    ) -> Tensor:
        """Attention of every token, or of the tokens in rows [B, P], to all tokens."""
        x = self.attn_norm(x)
        asking = x if rows is None else take(x, rows)
        projected = (self.q_proj(asking), self.k_proj(x), self.v_proj(x))
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for y in projected)  # [B, heads, N, d_h]
        k = rotate(k, cosines, sines)
        if rows is not None:
            cosines, sines = (take(a[:, 0].expand(len(rows), -1, -1), rows)[:, None] for a in (cosines, sines))
        return self._combined(rotate(q, cosines, sines), k, v, mask)

    def remember(
        self, x: Tensor, cosines: Tensor, sines: Tensor, mask: Tensor | None, keys: Keys, rows: Tensor | None
    ) -> Tensor:
        """Attention with a KV cache. If rows are given, x holds only these tokens; they attend to the whole cache."""
        q, k, v = at_once(self.project, x, cosines, sines)
        if rows is None:
            keys.write(self.name, k, v)
        else:
            k, v = keys.update(self.name, rows, k, v)
        return self.merge(self.seen(q, k, v, mask))

    @branch_function
    def project(self, x: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.projected(x, cosines, sines)

    @branch_function
    def merge(self, seen: Tensor) -> Tensor:
        return self.merged(seen)

    @branch_function
    def feed(self, x: Tensor) -> Tensor:
        return self.fed(x)

    def projected(self, x: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [B, heads, N, d_h] each."""
        x = self.attn_norm(x)
        if self.qkv is None:
            projected = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        else:
            sizes = [layer.weight.shape[0] for layer in (self.q_proj, self.k_proj, self.v_proj)]
            projected = F.linear(x, self.qkv, self.qkv_bias).split(sizes, dim=-1)
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for y in projected)
        return rotate(q, cosines, sines), rotate(k, cosines, sines), v

    def merged(self, seen: Tensor) -> Tensor:
        """The outputs of all heads, [B, heads, P, d_h], as an update, whose shape does not depend on the keys."""
        merged: Tensor = self.attn_out(seen.transpose(1, 2).flatten(2))
        return merged

    def _combined(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        found: Tensor = self.attn_out(self.seen(q, k, v, mask).transpose(1, 2).flatten(2))
        return found

    def seen(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        # Heads that share keys ask together: to the attention, they are more queries of one head.
        asked = q.unflatten(1, (-1, self.shared)).flatten(2, 3)
        found = F.scaled_dot_product_attention(asked, k, v, attn_mask=mask)
        return found.unflatten(2, (self.shared, -1)).flatten(1, 2)

    def fed(self, x: Tensor) -> Tensor:
        x = self.ff_norm(x)
        if self.gate_up is None:
            gate, up = self.ff_proj(x), self.up_proj(x)
        else:
            gate, up = F.linear(x, self.gate_up).chunk(2, dim=-1)
        fed: Tensor = self.ff_out(F.silu(gate) * up)
        return fed

    def fuse(self) -> None:
        """Join matrices that read the same input, so that one large product replaces several small ones.

        The layers' own weights become parts of the joined matrices: nothing is stored twice, and names stay.
        """
        projections = [self.q_proj, self.k_proj, self.v_proj]
        self.qkv = _joined([layer.weight for layer in projections], self.qkv)
        if projections[0].bias is not None:
            self.qkv_bias = _joined([layer.bias for layer in projections], self.qkv_bias)
        self.gate_up = _joined([self.ff_proj.weight, self.up_proj.weight], self.gate_up)

    def check_joined(self) -> None:
        """Forget the joined matrices if the weights no longer share their memory: weights were replaced, or copied."""
        for joined, layer in ((self.qkv, self.q_proj), (self.gate_up, self.ff_proj)):
            with suppress(RuntimeError):  # a tensor without values has no address
                if joined is not None and joined.data_ptr() != layer.weight.data_ptr():
                    return self.separate()
        return None

    def separate(self) -> None:
        """Forget the joined matrices; the layers keep their weights."""
        self.qkv = self.qkv_bias = self.gate_up = None


def _joined(parts: list[nn.Parameter], joined: Tensor | None) -> Tensor:
    """The parts as one tensor, in whose memory each part then lies. If they lie there already: `joined` itself."""
    if joined is not None:
        ends = accumulate((part.numel() for part in parts), initial=0)
        places = [joined.data_ptr() + end * joined.itemsize for end in ends]
        if [part.data_ptr() for part in parts] == places[:-1]:
            return joined
    with torch.no_grad(), torch.inference_mode(False):
        joined = torch.cat([part.detach() for part in parts])
        for part, lies in zip(parts, joined.split([len(part) for part in parts]), strict=True):
            part.data = lies
    return joined


def _given(rows: Tensor | None) -> tuple[Tensor, ...]:
    return () if rows is None else (rows,)
