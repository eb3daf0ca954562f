"""Our U-ViT is the published one: its keys, its size, its numbers; skips stay live."""

import math

import pytest
import torch
import torch.nn.functional as F

from tenuto.models.architecture import ConfigError
from tenuto.runtime.residual import plain
from tenuto_lab.networks.uvit import UViT, UViTConfig, infer_config, units
from tenuto_lab.units.unit_executor import UnitExecutor

TINY = {"img_size": 8, "in_chans": 3, "embed_dim": 16, "depth": 4, "num_heads": 2, "num_classes": 5}


def random_uvit(**changes):
    torch.manual_seed(0)
    network = UViT(UViTConfig(**{**TINY, **changes}))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return network.eval().requires_grad_(False)


def independent_forward(network, x, t, y):
    """U-ViT's equations once more, in float64, from the state dict alone."""
    c = network.config
    s = {key: value.double() for key, value in network.state_dict().items()}

    def linear(name, h):
        return h @ s[f"{name}.weight"].T + s.get(f"{name}.bias", torch.zeros(1))

    def norm(name, h):
        mean, var = h.mean(-1, keepdim=True), h.var(-1, unbiased=False, keepdim=True)
        return (h - mean) / (var + 1e-5).sqrt() * s[f"{name}.weight"] + s[f"{name}.bias"]

    def block(name, h, skip=None):
        if skip is not None:
            h = linear(f"{name}.skip_linear", torch.cat([h, skip], -1))
        n = norm(f"{name}.norm1", h)
        q, k, v = (
            part.unflatten(-1, (c.num_heads, -1)).transpose(1, 2) for part in linear(f"{name}.attn.qkv", n).chunk(3, -1)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(c.embed_dim // c.num_heads), -1)
        h = h + linear(f"{name}.attn.proj", (weights @ v).transpose(1, 2).flatten(2))
        return h + linear(f"{name}.mlp.fc2", F.gelu(linear(f"{name}.mlp.fc1", norm(f"{name}.norm2", h))))

    h = F.conv2d(x.double(), s["patch_embed.proj.weight"], s["patch_embed.proj.bias"], stride=c.patch_size)
    h = h.flatten(2).transpose(1, 2)
    half = c.embed_dim // 2
    angles = t.double()[:, None] * torch.exp(-math.log(10000) * torch.arange(half) / half)
    time = torch.cat([angles.cos(), angles.sin()], -1)
    if c.mlp_time_embed:
        time = linear("time_embed.2", F.silu(linear("time_embed.0", time)))
    h = torch.cat([s["label_emb.weight"][y][:, None], time[:, None], h], 1) + s["pos_embed"]
    skips = []
    for i in range(c.depth // 2):
        h = block(f"in_blocks.{i}", h)
        skips.append(h)
    h = block("mid_block", h)
    for i in range(c.depth // 2):
        h = block(f"out_blocks.{i}", h, skips.pop())
    h = linear("decoder_pred", norm("norm", h))[:, 2:]
    p, side = c.patch_size, c.img_size // c.patch_size
    image = torch.zeros(len(x), c.in_chans, c.img_size, c.img_size, dtype=torch.float64)
    for row in range(side):
        for column in range(side):
            patch = h[:, row * side + column].reshape(-1, p, p, c.in_chans).permute(0, 3, 1, 2)
            image[:, :, row * p : (row + 1) * p, column * p : (column + 1) * p] = patch
    return F.conv2d(image, s["final_layer.weight"], s["final_layer.bias"], padding=1)


@pytest.mark.parametrize("changes", [{}, {"mlp_time_embed": True, "qkv_bias": True}])
def test_forward_equals_an_independent_one_in_float64(changes):
    network = random_uvit(**changes)
    x, t, y = torch.randn(2, 3, 8, 8), torch.tensor([999, 3]), torch.tensor([0, 4])
    expected = independent_forward(network, x, t, y)
    torch.testing.assert_close(network.double()(x.double(), t, y), expected, rtol=1e-5, atol=1e-6)


def test_uvit_large_has_the_published_size_and_units():
    with torch.device("meta"):
        network = UViT(UViTConfig())
    assert sum(p.numel() for p in network.parameters()) == 286_763_172
    listed = units(network.config)
    assert len(listed) == 42
    scored = {key for unit in listed for key in unit.tensors()}
    assert scored <= set(network.state_dict())
    assert not any("skip_linear" in key for key in scored)


def test_the_units_are_every_residual_branch_once_in_order():
    network, seen = random_uvit(), []

    def recording(unit, h, branch, gate=None):
        seen.append(unit)
        return plain(unit, h, branch, gate)

    network(torch.randn(1, 3, 8, 8), torch.tensor([3]), torch.tensor([1]), residual=recording)
    assert seen == [unit.name for unit in units(network.config)]


def test_skips_stay_live_when_everything_is_held():
    import numpy as np

    from tenuto.scheduling.schedule import Schedule

    network = random_uvit()
    names = tuple(unit.name for unit in units(network.config))
    active = np.array([[True, False]] * len(names))
    schedule = Schedule(names, active, (1.0,) * len(names), "constant", "update", "toy", "sha256:toy")
    executor = UnitExecutor(network, schedule)
    executor.plan(torch.zeros(1, 3, 8, 8), torch.tensor([3]), torch.tensor([1]))  # as long as it has no hooks
    calls = []
    for block in network.out_blocks:
        block.skip_linear.register_forward_hook(lambda *_: calls.append(1))
    generation = executor.start()
    t, y = torch.tensor([3]), torch.tensor([1])
    first = generation(torch.zeros(1, 3, 8, 8), t, y)
    assert not torch.equal(generation(torch.ones(1, 3, 8, 8), t, y), first)
    assert len(calls) == 4


def test_a_bare_files_config_is_told_from_its_shapes():
    config = UViTConfig(embed_dim=512, num_heads=8, depth=4, num_classes=11, mlp_time_embed=True)
    with torch.device("meta"):
        shapes = {key: tuple(value.shape) for key, value in UViT(config).state_dict().items()}
    assert infer_config(shapes) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"depth": 5}, "even, not 5"), ({"num_heads": 3}, "num_heads 3"), ({"patch_size": 3}, "patch_size 3")],
)
def test_a_config_refuses_nonsense(changes, message):
    with pytest.raises(ConfigError, match=message):
        UViTConfig(**{**TINY, **changes})


def test_the_published_layout_loads(tmp_path):
    import tenuto

    torch.manual_seed(0)
    network = UViT(UViTConfig(embed_dim=512, num_heads=8, depth=2, num_classes=11, img_size=8))
    torch.save(network.state_dict(), tmp_path / "imagenet256_uvit_small.pth")
    model = tenuto.load(str(tmp_path / "imagenet256_uvit_small.pth"))
    assert model.architecture.name == "uvit" and model.config == network.config
    assert len(tenuto.score(str(tmp_path / "imagenet256_uvit_small.pth")).units) == 6
    schedule = tenuto.schedule(model, steps=4, every=2)
    assert tenuto.generate(model, [3], steps=4, solver="dpm++", schedule=schedule).shape == (1, 4, 8, 8)
