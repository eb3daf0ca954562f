"""The kernels of a block step give what the plain functions give.

They run on a GPU, or without one in Triton's interpreter (TRITON_INTERPRET=1).
"""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")
if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
    pytest.skip("there is neither a GPU nor Triton's interpreter", allow_module_level=True)

from tenuto.models import block_kernels as kernels
from tenuto.models import kernel_step, language
from tenuto.models.attention_kernels import attended
from tenuto.models.cached_step import by_functions
from tenuto.models.dream import Dream, DreamConfig
from tenuto.models.kernel_settings import Settings
from tenuto.models.kernel_step import Products, by_kernels
from tenuto.models.language import LanguageNetwork
from tenuto.models.language_block import RMSNorm, rotary_angles, rotate
from tenuto.models.llada import LLaDA, LLaDAConfig
from tenuto.runtime.keys import Keys
from tenuto.runtime.residual import Deferred, plain
from tenuto.sampling.guesses import Likeliest
from tenuto.sampling.window import packing

DEVICE, DTYPE = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
SMALL = Settings(block_n=16, block_k=32, num_warps=4, num_stages=2)
HALVED = Settings(block_n=16, block_k=32, num_warps=4, num_stages=2, split=2)
pytestmark = pytest.mark.gpu if torch.cuda.is_available() else []


def close(found: Tensor, expected: Tensor) -> None:
    """Within the rounding of a few sums."""
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert error < (0.03 if torch.cuda.is_available() else 1e-5), f"relative error {error:.1e}"


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=DTYPE)


def test_products_in_parts_add_up() -> None:
    x, w = drawn(6, 64), drawn(96, 64)
    parts = kernels.projected(x, w, HALVED)
    assert parts.shape == (2, 6, 96)
    close(parts.sum(0), x @ w.T)


def test_the_gate_is_applied_by_the_product() -> None:
    x, w = drawn(6, 64), drawn(96, 64)
    gate, up = (x @ w.T).chunk(2, dim=-1)
    close(kernels.swiglu(x, w, SMALL), F.silu(gate) * up)


def test_the_stream_is_added_to_and_normed() -> None:
    h, parts, norm = drawn(5, 48), drawn(3, 5, 48).float(), RMSNorm(48, 1e-5).to(DEVICE, DTYPE)
    norm.weight.data.uniform_(0.5, 1.5)
    expected = h + parts.sum(0).to(DTYPE)
    found = kernels.added(h, parts, norm)
    close(h, expected)
    close(found, norm(expected))


@pytest.mark.parametrize(("parts", "padding"), [(1, 0), (3, 0), (3, 70)])
def test_attention_in_parts_is_the_same_attention(parts: int, padding: int) -> None:
    q, k, v = drawn(2, 4, 5, 32), drawn(2, 2, 150, 32), drawn(2, 2, 150, 32)
    mask = torch.arange(150, device=DEVICE)[None] >= torch.tensor([[padding], [0]], device=DEVICE)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None], enable_gqa=True)
    starts, asked = torch.tensor([0, 5, 10], device=DEVICE), q.transpose(1, 2).flatten(0, 1).contiguous()
    found = attended(asked, k, v, mask if padding else None, starts, 5, parts)
    close(found, expected.transpose(1, 2).flatten(2).flatten(0, 1))


def test_texts_may_have_different_numbers_of_tokens() -> None:
    q, k, v = drawn(7, 2, 32), drawn(2, 2, 90, 32), drawn(2, 2, 90, 32)
    found = attended(q, k, v, None, torch.tensor([0, 2, 7], device=DEVICE), 5, 2)
    for text, (start, end) in enumerate(((0, 2), (2, 7))):
        one = F.scaled_dot_product_attention(q[start:end].transpose(0, 1), k[text], v[text])
        close(found[start:end], one.transpose(0, 1).flatten(1))


def test_queries_and_keys_are_rotated_in_place_and_the_gate_is_applied() -> None:
    given, places = drawn(6, 4, 32), torch.tensor([[0, 3, 5], [1, 2, 7]], device=DEVICE)
    cosines, sines = rotary_angles(places, 32, 1e4)
    angles = tuple(one[:, 0].flatten(0, 1).contiguous() for one in (cosines, sines))
    each = given.view(2, 3, 4, 32).transpose(1, 2)
    expected = torch.cat([rotate(each[:, :3], cosines, sines), each[:, 3:]], 1).transpose(1, 2).flatten(0, 1)
    close(kernels.rotated(given.clone(), 2, angles), expected)  # type: ignore[arg-type]
    x = drawn(5, 2 * 48)
    close(kernels.gated(x), F.silu(x[:, :48]) * x[:, 48:])


LLADA = LLaDAConfig(64, 3, 2, 2, 128, 100, 100, 256, mask_token_id=0, eos_token_id=1)
DREAM = DreamConfig(
    hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128,
    vocab_size=100, mask_token_id=0, eos_token_id=1,
)  # fmt: skip


OURS = Products(SMALL, SMALL, HALVED, HALVED)


@pytest.mark.parametrize("products", [OURS, Products()], ids=["few", "many"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_whole_steps_are_those_of_the_functions(
    family: str, padded: bool, products: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = made(family)
    monkeypatch.setattr(kernel_step, "parts_for", lambda q, k, longest: 2)
    embedding, blocks, norm, _ = network.parts()
    tokens = torch.randint(2, 100, (2, 140), device=DEVICE)
    rows = torch.stack([torch.randperm(140, device=DEVICE)[:7].sort().values for _ in range(2)])
    real = torch.arange(140, device=DEVICE)[None] >= torch.tensor([[0], [9]], device=DEVICE)
    mask = real[:, None, None] if padded else None

    def rope(places: Tensor) -> Deferred:
        return Deferred(lambda: rotary_angles(places, network.config.head_dim, network.config.rope_theta))

    found = []
    for ours in (False, True):
        keys, everywhere = Keys(), torch.arange(140, device=DEVICE)[None]
        h = embedding(tokens)
        if ours:
            whole = by_kernels(h, list(blocks), norm, rope(everywhere), mask, keys, None)
        else:
            for block in blocks:
                h = block(h, rope(everywhere), mask, plain, (keys, None))
            whole = norm(h)
        h = embedding(tokens.flip(1).gather(1, rows))
        told = (h, list(blocks), norm, rope(rows), mask, keys, rows)
        step = by_kernels(*told, products) if ours else by_functions(*told)
        found.append((whole, step, *(one for block in blocks for one in keys.of(block.name))))
    for one, other in zip(*found, strict=True):
        close(other, one)


@pytest.mark.parametrize("padded", [False, True])
def test_packed_tokens_are_computed_as_if_they_were_not(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network, mask = made("llada"), torch.tensor([0, 3, 0], device=DEVICE)[:, None]
    monkeypatch.setattr(kernel_step, "FEW", 4)
    tokens = torch.randint(2, 100, (3, 60), device=DEVICE)
    real = torch.arange(60, device=DEVICE)[None] >= mask if padded else None
    rows = torch.tensor([[20, 25, 20, 20], [7, 7, 7, 7], [30, 31, 40, 59]], device=DEVICE)  # the second has ended
    slots, starts = packing(torch.tensor([2, 0, 4], device=DEVICE), 4)
    assert starts.tolist() == [0, 2, 2, 6] and slots[:6].tolist() == [0, 1, 8, 9, 10, 11]
    asked = torch.tensor([[25, 20], [7, 8], [59, 30]], device=DEVICE)
    found = []
    for packed in (None, (slots[:8], starts)):
        keys = Keys()
        network(tokens, attention_mask=real, memory=(keys, None))
        with monkeypatch.context() as patch:
            patch.setattr(language, "suits", lambda h, blocks, on=packed is not None: on)
            guesses, likely = network(
                tokens.flip(1),
                attention_mask=real,
                positions=asked,
                memory=(keys, rows),
                read=Likeliest(0),
                packed=packed,
            )
        going = torch.tensor([0, 2], device=DEVICE)
        found.append((guesses[going], likely[going], *(one[going] for one in keys.of("blocks.2"))))
    for one, other in zip(*found, strict=True):
        close(other, one)


def made(family: str) -> LanguageNetwork:
    torch.manual_seed(0)
    network: LanguageNetwork = LLaDA(LLADA) if family == "llada" else Dream(DREAM)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1) if parameter.dim() == 2 else torch.nn.init.uniform_(parameter, 0.5, 1)
    network = network.to(DEVICE, DTYPE).eval().requires_grad_(False)
    network.fuse()
    return network
