"""Training-time freezing: what is frozen stays, what is counted is trained, and every method learns."""

import math
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F

import tenuto
from tenuto.errors import UsageError
from tenuto.models import Model, llada
from tenuto.models.llada import LLaDA
from tenuto_lab.candidates.ranked_lifetimes import statistic_of
from tenuto_lab.paper import tuning as freezing
from tenuto_lab.paper.freezing import DIGITS, _course, _Task
from tests.conftest import random_dit, write_checkpoint
from tests.models.test_llada import TINY as LLADA

STEPS = 12


@pytest.fixture(scope="module")
def dit(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tenuto.load(str(write_checkpoint(tmp_path_factory.mktemp("model") / "dit", random_dit())))


def dit_loss() -> Any:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 1, 8, 8, generator=generator)
    t, y = torch.randint(1000, (8,), generator=generator), torch.randint(4, (8,), generator=generator)
    return lambda network: F.mse_loss(network(x, t, y), x)


def language() -> Any:
    torch.manual_seed(0)
    network = LLaDA(LLADA)
    network.initialize_weights()
    network.eval().requires_grad_(False)
    return Model("tiny", llada.ARCHITECTURE, LLADA, (), llada.units(LLADA), network)


def text_loss() -> Any:
    tokens = torch.randint(2, 20, (4, 12), generator=torch.Generator().manual_seed(0))
    noisy = tokens.masked_fill(torch.arange(12) % 2 == 0, LLADA.mask_token_id)
    return lambda network: F.cross_entropy(network(noisy).flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("method", freezing.METHODS)
@pytest.mark.parametrize("family", ["dit", "llada"])
def test_every_method_learns_and_changes_only_what_it_trains(dit: Any, method: Any, family: str) -> None:
    model, loss = (dit, dit_loss()) if family == "dit" else (language(), text_loss())
    before = {name: value.clone() for name, value in model.network.named_parameters()}
    tuned = freezing.tune(model, tenuto.score(model), method, loss, steps=STEPS, lr=3e-3)
    assert len(tuned.losses) == STEPS and tuned.losses[-1] < tuned.losses[0] and tuned.seconds > 0
    assert all(torch.equal(value, before[name]) for name, value in model.network.named_parameters())
    after = {name.replace(".base_layer", ""): value for name, value in tuned.network.named_parameters()}
    own = {unit.name: unit.tensors() for unit in model.units}
    frozen = {name for unit in tuned.frozen for name in own[unit]}
    changed = {name for name in before if not torch.equal(after[name], before[name])}
    assert tuned.parameters == sum(value.numel() for value in before.values())
    if method == "lora":
        assert not changed
    else:
        assert not changed & frozen and bool(frozen) == (method != "full")
        assert changed >= {name for unit, names in own.items() if unit not in tuned.frozen for name in names}


def test_parameters_are_counted_by_hand(dit: Any) -> None:
    scores, total = tenuto.score(dit), sum(value.numel() for value in dit.network.parameters())
    fixed = dit.network.pos_embed.numel()  # which a DiT does not learn
    attention, mlp = 16 * 48 + 48 + 16 * 16 + 16, 2 * 16 * 64 + 64 + 16
    full = freezing.tune(dit, scores, "full", dit_loss(), steps=1)
    assert (full.trainable, full.parameters) == (total - fixed, total)
    held = freezing.tune(dit, scores, "scr", dit_loss(), steps=1)
    sizes = [attention if unit.endswith("attn") else mlp for unit in held.frozen]
    assert held.trainable == full.trainable - sum(sizes)
    rank = 4
    lora = freezing.tune(dit, scores, "lora", dit_loss(), steps=1, rank=rank)
    assert lora.trainable == 3 * rank * ((16 + 48) + (16 + 16) + 2 * (16 + 64))


def test_the_lowest_in_scr_are_frozen_and_random_ones_are_as_many_weights(dit: Any) -> None:
    scores = tenuto.score(dit)
    frozen = freezing.frozen_units(dit.network, dit.units, scores, "scr")
    values = dict(zip((unit.name for unit in scores.units), statistic_of(scores, "scr"), strict=True))
    rest = [values[unit] for unit in values if unit not in frozen]
    assert frozen and max(values[unit] for unit in frozen) < min(rest)
    own = freezing.unit_parameters(dit.network, dit.units)
    sizes = {unit: sum(value.numel() for value in parts.values()) for unit, parts in own.items()}
    draws = {freezing.frozen_units(dit.network, dit.units, scores, "random", seed=seed) for seed in range(6)}
    assert len(draws) > 1
    for chosen in (frozen, *draws):
        off = abs(sum(sizes[unit] for unit in chosen) - 0.4 * sum(sizes.values()))
        assert off <= max(sizes.values()) / 2
    assert freezing.frozen_units(dit.network, dit.units, scores, "scr", share=0.0) == ()
    assert len(freezing.frozen_units(dit.network, dit.units, scores, "scr", share=1.0)) == 6


def test_a_fresh_adapter_changes_nothing_yet(dit: Any) -> None:
    network = freezing.trainable_copy(dit)
    x, t, y = torch.randn(1, 1, 8, 8), torch.tensor([3]), torch.tensor([1])
    with torch.no_grad():
        want = network(x, t, y)
        freezing.add_adapters(network, dit.units)
        assert torch.equal(network(x, t, y), want)
    assert all("lora_" in name for name, value in network.named_parameters() if value.requires_grad)


def test_nonsense_is_refused(dit: Any) -> None:
    scores = tenuto.score(dit)
    with pytest.raises(UsageError, match="one of full, lora"):
        freezing.tune(dit, scores, cast(Any, "half"), dit_loss(), steps=1)
    with pytest.raises(UsageError, match="At least one step"):
        freezing.tune(dit, scores, "full", dit_loss(), steps=0)
    with pytest.raises(UsageError, match="between 0 and 1"):
        freezing.tune(dit, scores, "scr", dit_loss(), steps=1, share=40)


def test_a_lesson_hides_parts_of_answers_and_asks_for_them() -> None:
    task, seen = _Task(tenuto.load("small-llada"), 0), []

    def network(given: Any) -> Any:
        seen.append(given)
        return torch.zeros(*given.shape, task.model.config.vocab_size)

    lesson = task.loss()
    losses = [float(lesson(network)) for _ in range(20)]
    tokens, answer = task._rows(task.questions)
    hidden = torch.cat(seen) == task.mask
    assert not hidden[:, ~answer[0]].any()
    assert 0.3 < hidden[:, answer[0]].float().mean() < 0.7
    digits = task.model.tokenizer.decode(tokens[0][answer[0]].tolist())
    assert digits.replace(" ", "").startswith(f"{task.questions[0]:0{DIGITS}d}"[::-1])
    knows_nothing = math.log(task.model.config.vocab_size)
    assert sum(losses) / len(losses) == pytest.approx(knows_nothing, rel=0.1)


def test_a_course_is_drawn_by_means_of_lessons() -> None:
    runs = [{"losses": [4.0] * 5 + [2.0] * 5}, {"losses": [2.0] * 5 + [0.0] * 5}]
    assert _course(runs) == [[3, 3], [8, 1]]
