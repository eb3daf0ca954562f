"""What the tests share: small models made on the spot, and the rule that GPU tests need a GPU."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tenuto.models.dit import DiT, DiTConfig

TINY = {
    "input_size": 8,
    "patch_size": 2,
    "in_channels": 1,
    "hidden_size": 16,
    "depth": 3,
    "num_heads": 2,
    "num_classes": 4,
    "learn_sigma": False,
}


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def random_dit(seed: int = 0, **changes: object) -> DiT:
    """A small DiT in which every unit and every gate does something."""
    torch.manual_seed(seed)
    network = DiT(DiTConfig(**{**TINY, **changes}))
    for parameter in network.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    return network.eval().requires_grad_(False)


def write_checkpoint(directory: Path, network: DiT, dtype: torch.dtype = torch.float32, shards: int = 1) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    changes = {k: getattr(network.config, k) for k in TINY}
    (directory / "config.json").write_text(json.dumps({"model_type": "dit", **changes}))
    state = {key: value.to(dtype).contiguous() for key, value in network.state_dict().items()}
    if shards == 1:
        save_file(state, directory / "model.safetensors")
        return directory
    index = {}
    keys = list(state)
    for i in range(shards):
        name = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {key: state[key] for key in keys[i::shards]}
        save_file(part, directory / name)
        index.update(dict.fromkeys(part, name))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return directory


@pytest.fixture
def network() -> DiT:
    return random_dit()


@pytest.fixture
def checkpoint(tmp_path: Path, network: DiT) -> Path:
    return write_checkpoint(tmp_path / "dit", network)
