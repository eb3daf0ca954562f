"""What hindsight could gain: how much nearer the default would come if its choices were made for the network at hand.

    python -m benchmarks.hindsight                      # writes results/hindsight/, about a quarter of an hour
    python -m benchmarks.hindsight --only tiny-dit --guidance 5 --samples 2 --tries 10

The default decides before the run which steps are evaluated, how far a polynomial may extrapolate (the bound of Σ|w|),
and whether the first evaluation asks ahead. Here each choice is made again with hindsight, for one network and one
guidance, by what comes nearest to the full run. Evaluations are moved one at a time as long as this helps. No user
could choose like this without the full run, so the gains are what is left to gain, not what can be had.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.places import own_network, results_of
from benchmarks.search import FEW_STEPS, SIGNAL, Grid, Network, Run, Scheme, full, grid_of, network_of, placed
from scripts.command_line import run
from tenuto.files import write_json, write_text
from tenuto.provenance import origin, provenance
from tenuto.quality import psnr
from tenuto.sampling.pictures import decode, vae_of
from tenuto.scheduling.placement import begins_with_signal

CASES = (("ddim-50", 8), ("ddim-50", 12), ("flow-28", 7), ("flow-28", 10))  # (grid, evaluations)
AHEAD = replace(FEW_STEPS[-1], silent=-3.5, audible=3.0)  # as Tenuto's own sampler asks ahead
BOUNDS = (1.7, 2.0, 2.5, 3.0, 4.0)


class Judged:
    """The distance of schemes to one full run."""

    def __init__(self, network: Network, grid: Grid, x: torch.Tensor, vae: Any) -> None:
        self._network, self._grid, self._x, self._vae = network, grid, x, vae
        self._full = self._shown(full(network, grid, x))

    def _shown(self, x: torch.Tensor) -> torch.Tensor:
        return x if self._vae is None else decode(x, self._vae)

    def near(self, scheme: Scheme, computed: list[int]) -> float:
        """dB, the mean over all samples."""
        got = self._shown(Run(self._grid, scheme)(self._network, computed, self._x))
        return float(psnr(got, self._full).mean())


def default_for(grid: Grid, kind: str) -> Scheme:
    """The default as Tenuto's own sampler takes it (DDIM), or as a pipeline does (flow matching)."""
    if begins_with_signal(grid.log_snr.tolist()):
        return SIGNAL[-1]
    return FEW_STEPS[-1] if kind == "flow" else AHEAD


def moved(judged: Judged, scheme: Scheme, computed: list[int], steps: int, tries: int) -> tuple[float, list[int]]:
    """The nearest of what comes of moving evaluations one at a time, the first always staying where it is."""
    best, rng = judged.near(scheme, computed), np.random.default_rng(0)
    span = max(1, steps // (3 * len(computed)))
    while span and tries > 0:
        before = best
        for number in rng.permutation(range(1, len(computed))):
            for by in (-span, span):
                tried = [*computed[:number], computed[number] + by, *computed[number + 1 :]]
                if tries > 0 and sorted(set(tried)) == tried and tried[-1] < steps:
                    tries -= 1
                    if (near := judged.near(scheme, tried)) > best:
                        best, computed = near, tried
                        break
        if best == before:
            span //= 2
    return best, computed


def measure(judged: Judged, grid: Grid, kind: str, count: int, tries: int) -> dict[str, Any]:
    scheme = default_for(grid, kind)
    computed = placed(grid, scheme, count)
    nearest, found = moved(judged, scheme, computed, grid.steps, tries)
    bounds = {one: judged.near(replace(scheme, bound=one, bound_if_few=one), computed) for one in BOUNDS}
    row: dict[str, Any] = {
        "default": judged.near(scheme, computed),
        "computed": computed,
        "moved": nearest,
        "moved_to": found,
        "bounds": bounds,
    }
    if not begins_with_signal(grid.log_snr.tolist()):
        asks = scheme.silent is not None and count < scheme.many
        other = FEW_STEPS[-1] if asks else replace(AHEAD, many=1000)
        row["other_begin"] = judged.near(other, placed(grid, other, count))
    return row


def table(record: Mapping[str, Any]) -> str:
    lines = [
        "# What hindsight could gain",
        "",
        origin(record["provenance"]),
        "",
        f"dB to the full run, the mean over {record['samples']} pictures, and what would be gained. *Evaluations",
        "moved*: one at a time, as long as this helps. *Best bound*: of Σ|w| in predictions; the default is 2.5, and 2",
        "with fewer than nine evaluations. *Other beginning*: with asking ahead where the default does not ask ahead,",
        "and without it where the default asks ahead. The grid flow-28 has the noise levels of flow matching with 28",
        "steps, shifted by 3. The networks were trained to predict noise, and can be asked at these levels as well.",
        "",
        "| network | guidance | grid | evaluations | default | evaluations moved | best bound | other beginning |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in record["rows"]:
        bound = max(row["bounds"], key=row["bounds"].__getitem__)
        other = "" if row.get("other_begin") is None else f"{row['other_begin'] - row['default']:+.1f}"
        lines.append(
            f"| {row['network']} | {row['guidance']:g} | {row['grid']} | {row['evaluations']} | {row['default']:.1f} | "
            f"{row['moved'] - row['default']:+.1f} | {row['bounds'][bound] - row['default']:+.1f} ({float(bound):g}) | "
            f"{other} |"
        )
    return "\n".join(lines) + "\n"


def main(
    out: Annotated[Path, typer.Option(help="The file to write; a table is written beside it.")] = results_of(
        "hindsight"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Networks.")] = None,
    guidances: Annotated[list[float] | None, typer.Option("--guidance")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Pictures of each network.")] = 4,
    tries: Annotated[int, typer.Option(min=1, help="So many placements are tried at most.")] = 40,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Make the default's choices again with hindsight."""
    made, rows = provenance(device, seed=0), []
    for name in only or ("tiny-dit", "natural-dit"):
        model = own_network(name, device)
        for guidance in guidances or (1.5, 5.0):
            network, x = network_of(model, samples, guidance)
            for grid_name in dict.fromkeys(grid for grid, _ in CASES):
                kind, steps = grid_name.split("-")
                grid = grid_of(model, kind, int(steps))
                judged = Judged(network, grid, x, vae_of(model))
                for count in (count for one, count in CASES if one == grid_name):
                    about = {"network": name, "guidance": guidance, "grid": grid_name, "evaluations": count}
                    rows.append({**about, **measure(judged, grid, kind, count, tries)})
                    record = {"provenance": made, "samples": samples, "rows": rows}
                    write_json(out, record)
                    write_text(out.with_suffix(".md"), table(record))
                    print(f"{about}: {rows[-1]['default']:.1f} dB, moved {rows[-1]['moved']:.1f} dB", flush=True)


if __name__ == "__main__":
    run(main)
