"""midisim 26.1.18 (Apache-2.0): piano music as tokens, a bidirectional transformer of 25.6 million parameters.

A note is two tokens, its duration (128 and up) and its pitch (256 and up); a number below 128 before a note says how
much later the note comes.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.networks_of_others.masked import MaskedBlock, MaskedCase, MaskedConfig, MaskedNetwork, angles
from benchmarks.networks_of_others.packages import loaded, read_weights
from tenuto.errors import UsageError

WIDTH, LAYERS, HEADS, HIDDEN, ROTATED = 512, 8, 8, 2048, 32
CONFIG = MaskedConfig(386, 3072, 384, 385, WIDTH, LAYERS, HEADS, HIDDEN)
PROMPT = 48  # tokens
SCALES = ((0, 2, 4, 5, 7, 9, 11), (0, 2, 3, 5, 7, 8, 10))  # major, minor


class Embedding(nn.Embedding):
    def forward(self, tokens: Tensor, *_: Tensor) -> Tensor:
        return super().forward(tokens)


def rotate(x: Tensor, places: Tensor) -> Tensor:
    """Pairs of neighbouring channels are rotated, in the first half of each head."""
    at = angles(places, ROTATED)
    first, second = x[..., :ROTATED:2], x[..., 1:ROTATED:2]
    turned = torch.stack([first * at.cos() - second * at.sin(), second * at.cos() + first * at.sin()], dim=-1)
    return torch.cat([turned.flatten(-2), x[..., ROTATED:]], dim=-1)


def norm() -> nn.LayerNorm:
    return nn.LayerNorm(WIDTH, bias=False)


def block(i: int) -> MaskedBlock:
    attention = [norm(), *(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))]
    mlp = nn.Sequential(norm(), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
    return MaskedBlock(f"blocks.{i}", attention, mlp, HEADS, rotate)


def theirs() -> dict[str, str]:
    """What the file calls each of our tensors."""
    names = {"embedding.weight": "token_emb.emb.weight", "head.0.weight": "attn_layers.final_norm.gamma"}
    names["head.1.weight"] = "to_logits.weight"
    for i in range(LAYERS):
        attention, mlp, ours = f"attn_layers.layers.{2 * i}", f"attn_layers.layers.{2 * i + 1}", f"blocks.{i}"
        names[f"{ours}.norm.weight"] = f"{attention}.0.0.gamma"
        for layer, name in (("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("out", "to_out")):
            names[f"{ours}.{layer}.weight"] = f"{attention}.1.{name}.weight"
        names[f"{ours}.mlp.0.weight"] = f"{mlp}.0.0.gamma"
        for place, name in (("1", "ff.0.0"), ("3", "ff.2")):
            for kind in ("weight", "bias"):
                names[f"{ours}.mlp.{place}.{kind}"] = f"{mlp}.1.{name}.{kind}"
    return names


def load(packages: Path) -> MaskedCase:
    files = sorted((packages / "midisim" / "models").glob("midisim_small_pre_trained_model*.pth"))
    if not files:
        raise UsageError(f"{packages} does not hold midisim's model; docs/benchmarks.md says how to get it.")
    given = read_weights(files[0])
    names = theirs()
    if surplus := given.keys() - set(names.values()) - {"attn_layers.rotary_pos_emb.inv_freq"}:
        raise UsageError(f"{files[0].name} holds tensors that no layer takes: {', '.join(sorted(surplus))}.")
    head = nn.Sequential(norm(), nn.Linear(WIDTH, CONFIG.embedding_size, bias=False))
    network = MaskedNetwork(CONFIG, Embedding(CONFIG.embedding_size, WIDTH), [block(i) for i in range(LAYERS)], head)
    loaded(network, {ours: given[name] + name.endswith(".gamma") for ours, name in names.items()})  # norms store γ − 1
    return MaskedCase(
        "piano",
        "a bidirectional transformer that fills in piano music",
        "midisim 26.1.18 (Apache-2.0)",
        network,
        lambda count: [melody(i) for i in range(count)],
    )


def melody(seed: int) -> list[int]:
    """Broken chords over four steps of a scale, as made up by a generator: pitches, rhythm and key from the seed."""
    generator = torch.Generator().manual_seed(seed)
    key, mode, beat = (int(torch.randint(high, (), generator=generator)) for high in (12, 2, 3))
    tokens: list[int] = []
    bar = 0
    while len(tokens) < PROMPT:
        root = (0, 5, 3, 4)[bar % 4]
        for step in (0, 2, 4, 2):
            degree = root + step
            pitch = 54 + key + SCALES[mode][degree % 7] + 12 * (degree // 7)
            tokens += [4 * (beat + 1), 128 + 4 * (beat + 1), 256 + pitch]
        bar += 1
    return tokens[:PROMPT]
