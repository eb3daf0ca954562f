"""Every way of running a schedule, timed on the full-size networks: the ladder from eager to compiled jagged graphs.

    python benchmarks/ladder.py                       # all of it, on one GPU
    python benchmarks/ladder.py --only dit --only llada:1x512 --quick

Weights are random, as time does not depend on them. Results are written after each setting, so that an interrupted
run keeps what it has; settings that are in the file already are left out unless --again is given.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from tenuto.executor import Mode
from tenuto.files import read_json, write_json
from tenuto.integrations.blocks import TEXT_TOKENS
from tenuto.measure.speed import (
    Inputs,
    Rung,
    Subject,
    ceilings,
    everything,
    measure,
    refreshed,
    scattered_lifetimes,
)
from tenuto.models import architecture
from tenuto.models.unet import UNetConfig
from tenuto.provenance import provenance

RESULTS = Path(__file__).parent / "results" / "ladder.json"
BUDGETS = {"llada": 0.35, "dit": 0.34, "uvit": 0.36, "sdxl": 0.32}  # the paper's
PERIODS = (2, 3, 5, 8)
BLOCK = 32  # tokens of text whose logits are wanted
VARIANTS = 3  # different inputs, taken in turns


def random_network(name: str, config: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """The published network with weights of about the size they have."""
    with torch.device("meta"):
        network = architecture(name).network(config)
    network = network.to(dtype).to_empty(device=device).eval().requires_grad_(False)
    generator = torch.Generator(device).manual_seed(0)
    for parameter in network.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=0.02, generator=generator)
        else:
            parameter.fill_(1.0)
    return network


def llada(tokens: int, device: torch.device, dtype: torch.dtype, tiny: bool) -> Subject:
    config = architecture("llada").config(max_sequence_length=tokens)
    if tiny:
        config = replace(config, n_layers=2, d_model=64, n_heads=2, n_kv_heads=2, mlp_hidden_size=96)
    network = random_network("llada", config, device, dtype)

    def inputs(generator: torch.Generator) -> Inputs:
        ids = torch.randint(1000, (1, tokens), generator=generator, device=device)
        return (ids,), {"positions": torch.arange(tokens - BLOCK, tokens, device=device)}

    return _subject("LLaDA-8B", f"1x{tokens}", "llada", config, network, 1, inputs, device)


def classes(name: str, title: str, images: int, device: torch.device, dtype: torch.dtype, tiny: bool) -> Subject:
    small: dict[str, dict[str, int]] = {
        "dit": {"hidden_size": 64, "depth": 2, "num_heads": 2},
        "uvit": {"embed_dim": 64, "depth": 4, "num_heads": 2},
    }
    config = architecture(name).config(**(small[name] if tiny else {}))
    network, batch = random_network(name, config, device, dtype), 2 * images

    def inputs(generator: torch.Generator) -> Inputs:
        x = torch.randn(batch, *config.sample_shape, generator=generator, device=device).to(dtype)
        t = torch.randint(1000, (1,), generator=generator, device=device).expand(batch)
        return (x, t, torch.randint(config.classes, (batch,), generator=generator, device=device)), {}

    return _subject(title, f"{images} with guidance", name, config, network, batch, inputs, device)


def sdxl(images: int, device: torch.device, dtype: torch.dtype, tiny: bool) -> Subject:
    family = architecture("unet")
    config = family.config()
    if tiny:
        changes = {
            "sample_size": 32,
            "block_out_channels": [32, 64, 64],
            "attention_head_dim": [1, 2, 2],
            "transformer_layers_per_block": [1, 1, 2],
        }
        config = UNetConfig.from_diffusers({**config.to_diffusers(), **changes})
    network, batch = random_network("unet", config, device, dtype), 2 * images
    network.to(memory_format=torch.channels_last)
    size = config.sample_shape[1]

    def inputs(generator: torch.Generator) -> Inputs:
        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        added = {"text_embeds": noise(batch, 1280), "time_ids": torch.ones(batch, 6, device=device, dtype=dtype)}
        x = noise(batch, *config.sample_shape).contiguous(memory_format=torch.channels_last)
        t = torch.randint(1000, (1,), generator=generator, device=device).expand(batch)
        return (x, t, noise(batch, TEXT_TOKENS, 2048)), {"added_cond_kwargs": added}

    setting = f"{images} with guidance, {8 * size}x{8 * size}"
    return _subject("SDXL UNet", setting, "unet", config, network, batch, inputs, device)


def _subject(
    model: str,
    setting: str,
    name: str,
    config: Any,
    network: Any,
    batch: int,
    inputs: Callable[[torch.Generator], Inputs],
    device: torch.device,
) -> Subject:
    generator = torch.Generator(device).manual_seed(1)
    variants = tuple(inputs(generator) for _ in range(VARIANTS))
    return Subject(model, setting, network, architecture(name).units(config), batch, variants, device)


Make = Callable[[torch.device, torch.dtype, bool], Subject]
SETTINGS: dict[str, Make] = {
    **{f"llada:1x{n}": lambda *where, n=n: llada(n, *where) for n in (128, 512, 1024)},
    **{f"dit:{n}": lambda *where, n=n: classes("dit", "DiT-XL/2", n, *where) for n in (1, 16)},
    **{f"uvit:{n}": lambda *where, n=n: classes("uvit", "U-ViT-L/2", n, *where) for n in (1, 16)},
    **{f"sdxl:{n}": lambda *where, n=n: sdxl(n, *where) for n in (1, 8)},
}


def rungs(subject: Subject, budget: float, steps: int, quick: bool, gpu: bool) -> list[Rung]:
    units = subject.units
    paper = scattered_lifetimes(units, steps, budget)
    paper_name = f"lifetimes {budget:.0%}"
    result = [Rung("full", "eager", False, None)]
    if not gpu:
        result.append(Rung(paper_name, "skip", False, paper))
        return result + [Rung(f"refresh {n}", "skip", False, refreshed(units, 2 * n, n)) for n in PERIODS]
    if not quick:
        result.append(Rung("full", "jagged", False, everything(units, 8)))
        ways: tuple[Mode, ...] = ("skip", "padded", "jagged")
        result += [Rung(paper_name, mode, False, paper) for mode in ways]
    result.append(Rung("full", "eager", True, None))
    result.append(Rung("full", "jagged", True, everything(units, 8)))
    result.append(Rung("nothing", "jagged", True, refreshed(units, 16, 16, "hold", "update")))
    if not quick:
        result.append(Rung(paper_name, "padded", True, paper))
    result.append(Rung(paper_name, "jagged", True, paper))
    for n in PERIODS:
        length = n * -(-40 // n)
        result.append(Rung(f"refresh {n}", "jagged", True, refreshed(units, length, n)))
        if n == 8:
            name = f"refresh {n}, update held"
            result.append(Rung(name, "jagged", True, refreshed(units, length, n, "linear", "update")))
    return result


def main(
    out: Annotated[Path, typer.Option(help="The file to write, and to go on from.")] = RESULTS,
    only: Annotated[list[str] | None, typer.Option(help="Settings, or families: dit, llada:1x512, …")] = None,
    steps: Annotated[int, typer.Option(min=2, help="Of the lifetime schedules.")] = 100,
    repeats: Annotated[int, typer.Option(min=1, help="Generations timed; the median counts.")] = 3,
    quick: Annotated[bool, typer.Option(help="Compiled jagged graphs and their yardsticks only.")] = False,
    again: Annotated[bool, typer.Option(help="Measure what is in the file already, too.")] = False,
    tiny: Annotated[bool, typer.Option(help="Small networks: to try the script, not to measure.")] = False,
    device: Annotated[str, typer.Option(help="Where to run.")] = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Time every way of running a schedule on the full-size networks."""
    where = torch.device(device)
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    wanted = [name for name in SETTINGS if not only or name in only or name.split(":")[0] in only]
    known = read_json(out, "ladder") if out.exists() else {"settings": {}, "rows": []}
    for name in wanted:
        if name in known["settings"] and not again:
            print(f"{name} is in {out} already")
            continue
        subject = SETTINGS[name](where, dtype, tiny)
        # An SDXL generation of 100 steps takes a minute; a schedule of 20 has the same patterns, fewer times.
        length = min(steps, 20) if name.startswith("sdxl") else steps
        budget = BUDGETS[name.split(":")[0]]
        rows = measure(
            subject,
            rungs(subject, budget, length, quick, where.type == "cuda"),
            repeats,
            lambda text: print(text, flush=True),
        )
        made = [{"case": name, **row.to_json()} for row in rows]
        known["rows"] = [row for row in known["rows"] if row["case"] != name] + made
        known["settings"][name] = provenance(device, seed=0, ceilings=ceilings(where))
        write_json(out, known)
        del subject, rows
        if where.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    typer.run(main)
