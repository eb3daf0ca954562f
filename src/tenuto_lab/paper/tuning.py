"""Fine-tuning with some units frozen: does the spectral order also tell which units need no training?

    for method in METHODS:
        tuned = tune(model, scores, method, losses(), steps=200)      # the same batches for each method

full    trains everything
lora    trains only low-rank adapters beside the units' weights (peft)
scr     trains everything but the units with the lowest SCR, which hold two fifths of the units' weights
random  trains everything but random units, which hold the same share of the weights
"""

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from tenuto.errors import TenutoError, UsageError
from tenuto.extras import install
from tenuto.models import Model
from tenuto.scheduling.units import Unit
from tenuto_lab.candidates.ranked_lifetimes import statistic_of
from tenuto_lab.scoring.scores import Scores

Method = Literal["full", "lora", "scr", "random"]
METHODS: tuple[Method, ...] = get_args(Method)
SHARE = 0.4  # share of the units' weights that is frozen
RANK = 16  # of the adapters

Loss = Callable[[Any], Tensor]  # network -> the loss of the next batch


@dataclass(frozen=True, eq=False)
class Tuned:
    """A fine-tuned copy of a network, with its losses and its training time."""

    method: Method
    network: nn.Module
    frozen: tuple[str, ...]  # units
    trainable: int  # number of trained parameters, including adapters
    parameters: int  # number of parameters of the network without adapters
    losses: tuple[float, ...]  # of each step
    seconds: float


def tune(
    model: Model,
    scores: Scores,
    method: Method,
    loss_of: Loss,
    *,
    steps: int,
    lr: float = 1e-4,
    share: float = SHARE,
    rank: int = RANK,
    seed: int = 0,
) -> Tuned:
    """Fine-tune a copy of a model by one of the methods. The model itself does not change.

    loss_of  draws the next batch at every step. Give each method a fresh one, so that all methods see the same batches
    share    of the units' weights that scr and random freeze, to the nearest unit
    rank     of the adapters of lora
    seed     of the random order and of the adapters
    """
    if method not in METHODS:
        raise UsageError(f"The method is one of {', '.join(METHODS)}, not {method!r}.")
    if steps < 1:
        raise UsageError(f"At least one step must be taken, not {steps}.")
    network = trainable_copy(model)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    frozen: tuple[str, ...] = ()
    if method == "lora":
        add_adapters(network, model.units, rank, seed)
    elif method != "full":
        frozen = frozen_units(network, model.units, scores, method, share, seed)
        own = unit_parameters(network, model.units)
        for unit in frozen:
            for parameter in own[unit].values():
                parameter.requires_grad_(False)
    trainable = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    losses, seconds = _descend(network, loss_of, steps, lr)
    return Tuned(method, network.eval(), frozen, trainable, parameters, losses, seconds)


def trainable_copy(model: Model) -> nn.Module:
    """A copy in which the parameters that the architecture trains are trainable; a table of positions may be fixed."""
    with torch.device("meta"):
        blank = model.architecture.network(model.config)
    learned = {name: parameter.requires_grad for name, parameter in blank.named_parameters()}
    network = deepcopy(model.network).train()
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(learned[name])
    return network


def unit_parameters(network: nn.Module, units: Sequence[Unit]) -> dict[str, dict[str, nn.Parameter]]:
    """For each unit: its scored weights and their biases, by name."""
    named = dict(network.named_parameters())
    found = {}
    for unit in units:
        weights = unit.tensors()
        if absent := [name for name in weights if name not in named]:
            raise UsageError(f"The network has no parameter {absent[0]}, by which {unit.name} is scored.")
        biases = [name.removesuffix("weight") + "bias" for name in weights]
        found[unit.name] = {name: named[name] for name in (*weights, *biases) if name in named}
    return found


def frozen_units(
    network: nn.Module,
    units: Sequence[Unit],
    scores: Scores,
    by: Literal["scr", "random"],
    share: float = SHARE,
    seed: int = 0,
) -> tuple[str, ...]:
    """The lowest-ranked units; their parameters come nearest to this share of all units' parameters."""
    if not 0 <= share <= 1:
        raise UsageError(f"The share of the units to freeze lies between 0 and 1, not at {share}.")
    sizes = {
        unit: sum(parameter.numel() for parameter in own.values())
        for unit, own in unit_parameters(network, units).items()
    }
    if list(sizes) != [unit.name for unit in scores.units]:
        raise UsageError("The scores are of other units than the network's.")
    values = statistic_of(scores, by, seed)
    order = [scores.units[i].name for i in sorted(range(len(values)), key=lambda i: values[i])]
    wanted, reached = share * sum(sizes.values()), [0]
    for unit in order:
        reached.append(reached[-1] + sizes[unit])
    count = min(range(len(reached)), key=lambda n: abs(reached[n] - wanted))
    return tuple(order[:count])


def add_adapters(network: nn.Module, units: Sequence[Unit], rank: int = RANK, seed: int = 0) -> None:
    """Adds low-rank adapters beside every scored weight of the units. All other parameters are frozen."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise TenutoError(f"Adapters need peft: {install('lab')}") from error
    own: Mapping[str, Mapping[str, nn.Parameter]] = unit_parameters(network, units)
    weights = [name for parameters in own.values() for name in parameters if name.endswith(".weight")]
    modules = [name.removesuffix(".weight") for name in weights]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=modules), network)


def _descend(network: nn.Module, loss_of: Loss, steps: int, lr: float) -> tuple[tuple[float, ...], float]:
    """Trains, and returns the losses and the seconds. The steps do not wait for the device."""
    learned = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not learned:
        raise UsageError("Every parameter is frozen, so there is nothing to train.")
    optimizer = torch.optim.AdamW(learned, lr=lr, weight_decay=0.0)
    losses = []
    _wait(learned[0].device)
    start = time.perf_counter()
    for _ in range(steps):
        loss = loss_of(network)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    _wait(learned[0].device)
    seconds = time.perf_counter() - start
    return tuple(torch.stack(losses).tolist()), seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
