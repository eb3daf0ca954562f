"""A DiT's weights under the original names and under diffusers' names: the same tensors, renamed and split.

diffusers keeps one copy of the timestep and class embedders in every block, and no position table. Two of its
constants differ from the original's, and with them the output by a little: it spaces the timestep's frequencies over
127 intervals instead of 128 (set `norm1.emb.time_proj.downscale_freq_shift = 0` in every block for the original's), and
its second norm's epsilon is 1e-5 unless `norm_eps=1e-6` is given.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from tenuto.errors import CheckpointError
from tenuto.models.dit import sincos_positions

# original name -> diffusers' name, outside the blocks and inside each
OUTSIDE = {
    "x_embedder.proj": "pos_embed.proj",
    "final_layer.adaLN_modulation.1": "proj_out_1",
    "final_layer.linear": "proj_out_2",
}
INSIDE = {
    "adaLN_modulation.1": "norm1.linear",
    "attn.proj": "attn1.to_out.0",
    "mlp.fc1": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2",
}
EMBEDDERS = {
    "t_embedder.mlp.0.weight": "timestep_embedder.linear_1.weight",
    "t_embedder.mlp.0.bias": "timestep_embedder.linear_1.bias",
    "t_embedder.mlp.2.weight": "timestep_embedder.linear_2.weight",
    "t_embedder.mlp.2.bias": "timestep_embedder.linear_2.bias",
    "y_embedder.embedding_table.weight": "class_embedder.embedding_table.weight",
}
QKV = ("to_q", "to_k", "to_v")
PARTS = ("weight", "bias")


def to_diffusers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict of the original DiT as one of diffusers' DiTTransformer2DModel."""
    state = _Strict(state, "an original DiT")
    result = {f"{new}.{part}": state[f"{old}.{part}"] for old, new in OUTSIDE.items() for part in PARTS}
    state.pop("pos_embed", None)
    embedders = {new: state[old] for old, new in EMBEDDERS.items()}
    for i in range(_depth(state, "blocks")):
        block, target = f"blocks.{i}", f"transformer_blocks.{i}"
        result |= {f"{target}.norm1.emb.{key}": value for key, value in embedders.items()}
        for part in PARTS:
            for name, value in zip(QKV, state[f"{block}.attn.qkv.{part}"].chunk(3), strict=True):
                result[f"{target}.attn1.{name}.{part}"] = value.contiguous()
            for old, new in INSIDE.items():
                result[f"{target}.{new}.{part}"] = state[f"{block}.{old}.{part}"]
    state.check_all_read()
    return result


def to_original(state: Mapping[str, Tensor], side: int) -> dict[str, Tensor]:
    """A state dict of diffusers' DiTTransformer2DModel as one of the original DiT; `side` is in patches."""
    state = _Strict(state, "diffusers' DiT")
    result = {f"{old}.{part}": state[f"{new}.{part}"] for old, new in OUTSIDE.items() for part in PARTS}
    width = len(result["x_embedder.proj.weight"])
    result["pos_embed"] = sincos_positions(width, side).to(result["x_embedder.proj.weight"])
    for i in range(_depth(state, "transformer_blocks")):
        block, target = f"transformer_blocks.{i}", f"blocks.{i}"
        for old, new in EMBEDDERS.items():
            value = state[f"{block}.norm1.emb.{new}"]
            if not torch.equal(result.setdefault(old, value), value):
                raise CheckpointError(
                    f"{block} has a {new} of its own, but the original DiT has one for all its blocks: these weights "
                    "cannot be written in its layout."
                )
        for part in PARTS:
            qkv = [state[f"{block}.attn1.{name}.{part}"] for name in QKV]
            result[f"{target}.attn.qkv.{part}"] = torch.cat(qkv)
            for old, new in INSIDE.items():
                result[f"{target}.{old}.{part}"] = state[f"{block}.{new}.{part}"]
    state.check_all_read()
    return result


class _Strict(dict[str, Tensor]):
    """A state dict that names the tensor it lacks, and knows which of its tensors nobody asked for."""

    def __init__(self, state: Mapping[str, Tensor], what: str) -> None:
        super().__init__(state)
        self._what, self._unread = what, dict.fromkeys(state)

    def __getitem__(self, key: str) -> Tensor:
        if key not in self:
            raise CheckpointError(f"These are not the weights of {self._what}: the tensor {key} is missing.")
        self._unread.pop(key, None)
        return super().__getitem__(key)

    def check_all_read(self) -> None:
        if unread := [key for key in self._unread if key in self]:
            raise CheckpointError(
                f"These are not the weights of {self._what}: {len(unread)} tensor(s) are not expected, such as "
                f"{unread[0]}."
            )


def _depth(state: Mapping[str, Tensor], blocks: str) -> int:
    found = [int(match[1]) for key in state if (match := re.match(rf"{blocks}\.(\d+)\.", key))]
    return 1 + max(found, default=-1)
