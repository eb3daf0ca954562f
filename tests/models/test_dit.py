"""Our DiT is the published one: same keys, same numbers as diffusers' on converted weights, any size from a config."""

import pytest
import torch

from tenuto.models import architecture
from tenuto.models.architecture import ConfigError
from tenuto.models.dit import DiT, DiTConfig, infer_config, sincos_positions, units
from tenuto.runtime.residual import plain
from tests.conftest import TINY, random_dit
from tests.helpers.dit_weights import to_diffusers


def diffusers_twin(network: DiT):
    """diffusers' DiTTransformer2DModel with the same weights."""
    from diffusers import DiTTransformer2DModel

    c = network.config
    twin = DiTTransformer2DModel(
        num_attention_heads=c.num_heads,
        attention_head_dim=c.hidden_size // c.num_heads,
        in_channels=c.in_channels,
        out_channels=c.out_channels,
        num_layers=c.depth,
        sample_size=c.input_size,
        patch_size=c.patch_size,
        num_embeds_ada_norm=c.num_classes,
        norm_eps=1e-6,  # as the reference has it; diffusers' default is 1e-5
    ).eval()
    twin.load_state_dict(to_diffusers(network.state_dict()))
    for block in twin.transformer_blocks:
        # diffusers spaces the timestep's frequencies over half − 1 intervals, the reference over half.
        block.norm1.emb.time_proj.downscale_freq_shift = 0
    return twin


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"learn_sigma": True, "in_channels": 4},
        {"patch_size": 4, "hidden_size": 48, "num_heads": 4, "depth": 2},
    ],
)
def test_forward_equals_diffusers(changes):
    network = random_dit(**changes)
    twin = diffusers_twin(network)
    c = network.config
    x = torch.randn(3, c.in_channels, c.input_size, c.input_size)
    t, y = torch.tensor([999, 500, 1]), torch.tensor([0, 3, c.num_classes])
    expected = twin(x, timestep=t, class_labels=y).sample
    torch.testing.assert_close(network(x, t, y), expected, rtol=1e-4, atol=1e-5)


def test_dit_xl_2_has_the_published_keys_size_and_units():
    with torch.device("meta"):
        network = DiT(DiTConfig())
    assert sum(p.numel() for p in network.parameters()) == 675_129_632  # with the position table
    keys = network.state_dict()
    assert keys["pos_embed"].shape == (1, 256, 1152)
    assert keys["blocks.27.attn.qkv.weight"].shape == (3456, 1152)
    assert keys["final_layer.linear.weight"].shape == (32, 1152)
    assert keys["y_embedder.embedding_table.weight"].shape == (1001, 1152)
    listed = units(network.config)
    assert len(listed) == 56 and {unit.kind for unit in listed} == {"attention", "mlp"}
    assert all(key in keys for unit in listed for key in unit.tensors())


def test_position_table_is_the_references():
    table = sincos_positions(16, 3)[0]
    # Token 5 lies in row 1, column 2: the first half encodes the column, the second the row; sines before cosines.
    rates = [1, 0.1, 0.01, 0.001]
    expected = [
        *(torch.sin(torch.tensor(2 * r)) for r in rates),
        *(torch.cos(torch.tensor(2 * r)) for r in rates),
        *(torch.sin(torch.tensor(1 * r)) for r in rates),
        *(torch.cos(torch.tensor(1 * r)) for r in rates),
    ]
    torch.testing.assert_close(table[5], torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_the_units_are_every_residual_branch_once_in_order(network):
    seen = []

    def recording(unit, h, branch, gate=None):
        seen.append(unit)
        return plain(unit, h, branch, gate)

    network(torch.randn(1, 1, 8, 8), torch.tensor([3]), torch.tensor([1]), residual=recording)
    assert seen == [unit.name for unit in units(network.config)]


def test_unit_flops_are_what_torch_counts():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    network = random_dit()
    counted = {}

    def counting(unit, h, branch, gate=None):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # fused kernels go uncounted
            value = branch()
        counted[unit] = counter.get_total_flops()
        return h + gate() * value

    network(torch.randn(1, 1, 8, 8), torch.tensor([3]), torch.tensor([1]), residual=counting)
    shared = 2 * 16 * 6 * 16  # the first unit of each block also computes the block's modulation
    for unit in units(network.config):
        assert counted[unit.name] - (shared if unit.name.endswith("attn") else 0) == unit.flops


@pytest.mark.parametrize("learn_sigma", [True, False])
def test_a_bare_files_config_is_told_from_its_shapes(learn_sigma):
    config = DiTConfig(hidden_size=384, num_heads=6, depth=2, num_classes=7, learn_sigma=learn_sigma)
    with torch.device("meta"):
        shapes = {key: tuple(value.shape) for key, value in DiT(config).state_dict().items()}
    assert infer_config(shapes) == config


def test_a_width_nobody_published_needs_a_config():
    shapes = {key: tuple(value.shape) for key, value in random_dit().state_dict().items()}
    with pytest.raises(ConfigError, match=r"put a config\.json with num_heads"):
        infer_config(shapes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3}, "not a multiple of num_heads 3"),
        ({"patch_size": 3}, "not a multiple of patch_size 3"),
        ({"depth": 0}, "depth must be at least 1"),
        ({"hidden_size": 18, "num_heads": 2}, "multiple of 4"),
    ],
)
def test_a_config_refuses_nonsense(changes, message):
    with pytest.raises(ConfigError, match=message):
        DiTConfig(**{**TINY, **changes})


def test_initialised_for_training_every_block_is_the_identity():
    network = DiT(DiTConfig(**TINY))
    network.initialize_weights()
    x, t, y = torch.randn(2, 1, 8, 8), torch.tensor([7, 8]), torch.tensor([0, 1])
    assert torch.equal(network(x, t, y), torch.zeros(2, 1, 8, 8))
    assert torch.equal(network.pos_embed, sincos_positions(16, 4))


def test_the_registry_knows_it():
    assert architecture("dit").network is DiT


def test_what_is_worked_out_ahead_changes_nothing():
    network = random_dit()
    times, y = torch.tensor([900, 500, 3]), torch.tensor([1, 2])
    for t, named in zip(times, network.prepare(times, y), strict=True):
        x = torch.randn(2, 1, 8, 8)
        # The other timesteps share the product, which may round differently.
        torch.testing.assert_close(
            network(x, t.expand(2), y, **named), network(x, t.expand(2), y), rtol=1e-5, atol=1e-5
        )
    assert network.prepared_bytes(2) == sum(part.nbytes for part in named["modulations"])
