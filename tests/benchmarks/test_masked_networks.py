"""Masked language models of others, on a small network made here: keys kept, rows computed, texts judged."""

import pytest
import torch
from torch import Tensor, nn

from benchmarks.networks_of_others import korean, piano, proteins
from benchmarks.networks_of_others.masked import MaskedBlock, MaskedCase, MaskedConfig, MaskedNetwork, angles, rotated
from benchmarks.transfer import writing
from benchmarks.transfer.report import tables
from benchmarks.transfer.writing import FULL, Way
from tenuto.runtime.keys import Keys

WIDTH, HEADS, WORDS, MASK, END = 16, 2, 11, 9, 10


class Embedding(nn.Embedding):
    def forward(self, tokens: Tensor, *_: Tensor) -> Tensor:
        return super().forward(tokens)


@pytest.fixture
def case() -> MaskedCase:
    torch.manual_seed(0)

    def block(i: int) -> MaskedBlock:
        attention = [nn.LayerNorm(WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(4))]
        made = MaskedBlock(f"blocks.{i}", attention, nn.Linear(WIDTH, WIDTH), HEADS, rotate)
        made.after_mlp = nn.LayerNorm(WIDTH)
        return made

    def rotate(x: Tensor, places: Tensor) -> Tensor:
        return rotated(x, angles(places, WIDTH // HEADS))

    config = MaskedConfig(WORDS, 64, MASK, END, WIDTH, 2, HEADS, WIDTH)
    network = MaskedNetwork(config, Embedding(WORDS, WIDTH), [block(0), block(1)], nn.Linear(WIDTH, WORDS))
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.5)
    prompts = torch.randint(0, 9, (3, 4), generator=torch.Generator().manual_seed(1)).tolist()
    return MaskedCase(
        "made up",
        "a small one",
        "none",
        network.eval().requires_grad_(False),
        lambda n: prompts[:n],
        length=16,
        blocks=2,
    )


def test_rows_computed_beside_a_cache_of_the_same_tokens_are_those_of_the_whole(case: MaskedCase) -> None:
    tokens = torch.randint(0, 9, (2, 12), generator=torch.Generator().manual_seed(2))
    rows = torch.tensor([[3, 7, 8], [0, 1, 11]])
    keys = Keys()
    with torch.inference_mode():
        whole = case.network(tokens, memory=(keys, None))
        torch.testing.assert_close(case.network(tokens), whole)
        some = case.network(tokens, memory=(keys, rows), positions=rows)
        at = torch.tensor([2, 5])
        torch.testing.assert_close(case.network(tokens, positions=at), whole[:, at])
    torch.testing.assert_close(some, whole.gather(1, rows[..., None].expand(-1, -1, WORDS)))


def test_padding_on_the_left_changes_nothing(case: MaskedCase) -> None:
    tokens = torch.tensor([[1, 2, 3, 4]])
    padded, real = torch.tensor([[END, END, 1, 2, 3, 4]]), torch.tensor([[False, False, True, True, True, True]])
    found = case.network(padded, attention_mask=real)[:, 2:]
    torch.testing.assert_close(found, case.network(tokens), atol=1e-5, rtol=1e-5)


def test_a_cache_refreshed_at_every_step_writes_what_the_full_run_writes(case: MaskedCase) -> None:
    full = writing.write(case, Way(), case.prompts(3))
    assert full.shape == (3, 16) and not (full == MASK).any()
    assert torch.equal(writing.write(case, Way(1), case.prompts(3)), full)
    assert not torch.equal(writing.write(case, Way(8), case.prompts(3)), full)


def test_work_counts_the_positions_that_are_computed(case: MaskedCase) -> None:
    assert writing.work(case, Way(), 4) == 1 and writing.work(case, Way(a_step=4), 4) == 0.25
    assert writing.work(case, Way(8), 4) == pytest.approx((2 * 20 + 14 * 8) / (16 * 20))
    assert writing.work(case, Way(1), 4) == 1


def test_likelihood_is_of_each_token_given_the_others(case: MaskedCase) -> None:
    prompts, written = torch.tensor(case.prompts(1)), torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])
    total = 0.0
    for i in range(8):  # eight tokens in eight parts: one masked at a time
        hidden = torch.cat([prompts, written], dim=1)
        hidden[0, 4 + i] = MASK
        total += float(case.network(hidden)[0, 4 + i].log_softmax(-1)[written[0, i]])
    assert float(writing.likelihood(case, prompts, written)) == pytest.approx(total / 8, abs=1e-5)


def test_the_report_has_a_row_for_each_way(case: MaskedCase) -> None:
    found = writing.measure(case, samples=2, seeds=2)
    first = found["rows"][0]
    assert first["way"] == FULL and first["same"] == 1 and first["against_full"]["difference"] == 0
    made = {"command": "c", "commit": "abc", "torch": "2", "hardware": "a chip", "date": ""}
    record = {"networks": {}, "writers": {"made up": {"provenance": made, "samples": 2, "seeds": 2, **found}}}
    lines = tables(record).splitlines()
    assert sum(line.startswith(("| full", "| tenuto", "| fewer")) for line in lines) == len(writing.ways(case))


def test_the_rotations_keep_lengths_and_depend_on_distances_only() -> None:
    x, y = torch.randn(2, 1, 1, 1, 64).unbind()
    at = [torch.tensor([[place]]) for place in (3, 10, 103, 110)]
    for turn in (piano.rotate, lambda z, places: rotated(z, angles(places, 64))):
        near, far = ((turn(x, at[i]) * turn(y, at[i + 1])).sum() for i in (0, 2))
        torch.testing.assert_close(near, far, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(turn(x, at[3]).norm(), x.norm())
    assert torch.equal(piano.rotate(x, at[3])[..., 32:], x[..., 32:])


def test_masks_have_no_embedding_in_esm_and_the_others_are_scaled_by_their_number() -> None:
    embedding = proteins.Embedding()
    tokens = torch.tensor([[5, proteins.MASK, 7, 8]])
    found = embedding(tokens, tokens, tokens)
    assert not found[0, 1].any()
    torch.testing.assert_close(found[0, 0], embedding.words.weight[5] * 0.88 / 0.75)


def test_prompts_of_one_network_have_one_length_and_are_in_its_vocabulary() -> None:
    for make, config in ((piano.melody, piano.CONFIG), (proteins.beginning, proteins.CONFIG)):
        made = [make(i) for i in range(8)]
        assert len({tuple(one) for one in made}) > 4 and len({len(one) for one in made}) == 1
        assert all(0 <= token < config.mask_token_id for one in made for token in one)


def test_words_are_cut_into_the_longest_known_pieces() -> None:
    words = {piece: i for i, piece in enumerate(["[UNK]", "ab", "a", "##c", "##cd", "##b"])}
    assert korean.tokens("abcd ac xyz", words) == [1, 4, 2, 3, 0]


def test_the_layers_of_albert_are_the_same_objects_under_twelve_names() -> None:
    made = korean.blocks()
    assert [block.name for block in made] == [f"blocks.{i}" for i in range(12)]
    assert all(block.query is made[0].query and block.after_mlp is made[0].after_mlp for block in made)
