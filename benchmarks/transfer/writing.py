"""Masked language models of others: how far the KV cache of a schedule changes what they write.

A network writes with a temperature from the same random numbers by every way. Two texts of equal quality soon share few
tokens, because each token depends on all before. So a text is also judged by the network itself: the mean
log-likelihood of the written tokens, an eighth of which are masked at a time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.networks_of_others.masked import MaskedCase
from tenuto.runtime.executor import Executor
from tenuto.sampling.masked import generate_tokens
from tenuto.scheduling.rewrite import rewrite
from tenuto.scheduling.units import Unscored
from tenuto_lab.frontier.measurements import compared
from tenuto_lab.judging.statistics import mean_interval

FULL = "full"
TEMPERATURE, LIKELY = 1.0, 0.9  # tokens are drawn from the likeliest, whose probabilities add up to this
PARTS = 8  # in which written tokens are masked to be judged


@dataclass(frozen=True)
class Way:
    """every: steps from one full step of a block to the next; None: no cache. a_step: tokens written at a step."""

    every: int | None = None
    a_step: int = 1


def ways(case: MaskedCase) -> Mapping[str, Way]:
    block = case.length // case.blocks
    return {
        FULL: Way(),
        "tenuto, every 2nd step full": Way(2),
        "tenuto, every 4th step full": Way(4),
        "tenuto, one full step a block": Way(block),
        "fewer steps, 2 tokens each": Way(a_step=2),
        "fewer steps, 4 tokens each": Way(a_step=4),
        "tenuto, one full step a block, 2 tokens a step": Way(block, 2),
    }


def measure(
    case: MaskedCase, samples: int, seeds: int, say: Callable[[str], object] = lambda text: None
) -> dict[str, Any]:
    """A row for each way, with 95 % intervals over texts, and the difference of its likelihood from the full run's."""
    prompts = case.prompts(samples) * seeds
    written = {name: write(case, way, prompts) for name, way in ways(case).items()}
    asked = torch.tensor(prompts)
    judged = {name: likelihood(case, asked, tokens) for name, tokens in written.items()}
    rows = []
    for name, way in ways(case).items():
        same = (written[name] == written[FULL]).double().mean(dim=1)
        against = compared(case.name, case.length, "log-likelihood", (name, judged[name]), (FULL, judged[FULL]))
        row = {"way": name, "work": work(case, way, len(prompts[0])), **summary("same", same)}
        rows.append(row | summary("likelihood", judged[name]) | {"against_full": against.to_json()})
        say(f"{case.name}, {name}: {row['same']:.1%} as in the full run, log-likelihood {rows[-1]['likelihood']:.3f}")
    known = {
        "about": case.about,
        "source": case.source,
        "parameters": sum(value.numel() for value in case.network.parameters()),
        "length": case.length,
        "blocks": case.blocks,
    }
    return {"network": known, "rows": rows}


def write(case: MaskedCase, way: Way, prompts: list[list[int]]) -> Tensor:
    """[prompts, length]. Each text has a seed of its own."""
    steps = case.length // way.a_step
    schedule = None
    if way.every is not None:
        every = min(way.every, steps // case.blocks)
        schedule = rewrite(Unscored(case.name, case.name, case.units), steps, every=every, blocks=case.blocks)
    return generate_tokens(
        Executor(case.network, schedule),
        prompts,
        steps=steps,
        length=case.length,
        block_length=case.length // case.blocks,
        temperature=TEMPERATURE,
        top_p=LIKELY,
        stop_at_eos=False,
    )


@torch.inference_mode()
def likelihood(case: MaskedCase, prompts: Tensor, written: Tensor) -> Tensor:
    """The mean log-likelihood of each text's written tokens in nats, given the other tokens of the text."""
    device = next(case.network.parameters()).device
    whole = torch.cat([prompts, written], dim=1).to(device)
    total = torch.zeros(len(whole), dtype=torch.float64)
    for part in range(PARTS):
        places = torch.arange(prompts.shape[1] + part, whole.shape[1], PARTS, device=device)
        hidden = whole.index_fill(1, places, case.network.config.mask_token_id)
        logits: Tensor = case.network(hidden, positions=places)
        found = logits.float().log_softmax(-1).gather(-1, whole[:, places, None])[..., 0]
        total += found.double().sum(dim=1).cpu()
    return total / written.shape[1]


def work(case: MaskedCase, way: Way, prompt: int) -> float:
    """Positions computed, as a share of the full run's."""
    steps, block = case.length // way.a_step, case.length // case.blocks
    if way.every is None:
        return steps / case.length
    in_block = steps // case.blocks
    full = -(-in_block // min(way.every, in_block)) * case.blocks
    return (full * (prompt + case.length) + (steps - full) * block) / (case.length * (prompt + case.length))


def summary(name: str, values: Tensor) -> dict[str, float]:
    mean, low, high = mean_interval(values)
    return {name: round(mean, 4), f"{name}_low": round(low, 4), f"{name}_high": round(high, 4)}
