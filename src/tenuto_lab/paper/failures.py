"""What breaks first when a schedule is too aggressive? Samples under the schedule beside those of the full run."""

from base64 import b64encode
from functools import partial
from typing import Any

import torch

from tenuto.showing.images import grid, png_bytes
from tenuto_lab.frontier.writing import as_expected
from tenuto_lab.judging.verdicts import Verdict
from tenuto_lab.paper.conditions import Lab
from tenuto_lab.paper.drawing_bench import PictureBench
from tenuto_lab.paper.experiment_results import ClaimRow, ExperimentResult, Figure, Panel, spread
from tenuto_lab.paper.trials import Way
from tenuto_lab.paper.ways import in_full, ours, spectral
from tenuto_lab.paper.writing_bench import TextBench

TAUS = (0.5, 1.0, 2.0)
SHOWN = 8  # samples shown for each way
SUMS = ("arithmetic", "sums")  # tasks whose answers carry begin with one of these words
HIGH = 0.5  # share of the highest frequency; above it lies fine texture


def failures(lab: Lab) -> ExperimentResult:
    rows: list[ClaimRow] = []
    panels: list[Panel] = []
    for bench in lab.benches():
        ways = {"full": in_full(bench)}
        ways |= {f"τ = {tau:g}": spectral(bench, tau=tau) for tau in TAUS}
        ways["Tenuto, 20 %"] = ours(bench, 0.2)
        if isinstance(bench, PictureBench):
            found = lab.once(f"{bench.model.name}: failures", partial(_pictures, bench, ways, lab))
            panels.append(Panel(bench.model.name, {name: one["sheet"] for name, one in found.items()}))
            for name in list(found)[1:]:
                rows.append(
                    ClaimRow(
                        f"{name}: energy of fine texture, of the full run's",
                        bench.model.name,
                        None,
                        found[name]["texture"] / found["full"]["texture"],
                        holds=_if(name == "τ = 2", found[name]["texture"] < found["full"]["texture"]),
                        note="the paper: fine texture is lost first" if name == "τ = 2" else "",
                    )
                )
        elif isinstance(bench, TextBench):
            found = lab.once(f"{bench.model.name}: failures", partial(_answers, bench, ways))
            rows += [_wrong(bench, name, one) for name, one in found.items()]
    return ExperimentResult(
        rows,
        (_noise(rows) if panels else "")
        + "The paper names the first thing that breaks: fine texture of pictures, carries of sums.",
        Figure("pictures", panels) if panels else None,
        "Object counts and small lettering, which the paper names for SDXL, cannot be seen in 32 x 32 pictures.",
        f"{SHOWN} pictures of each model, and {(lab.text_samples or lab.samples) * lab.seeds} sums",
    )


def _if(tested: bool, true: bool) -> Verdict | None:
    return None if not tested else "yes" if true else "no"


def _carried(tested: bool, carrying: float, plain: float) -> Verdict | None:
    """The paper: carries go first. If every sum is right, or as many of both kinds are wrong, this cannot be told."""
    return "cannot tell" if tested and carrying == plain else _if(tested, carrying > plain)


def _noise(rows: list[ClaimRow]) -> str:
    held, ours = (spread(rows, f"{name}: energy") for name in ("τ = 2", "Tenuto, 20 %"))
    return (
        f"Units held for good leave noise: at τ = 2 pictures have {held} times the full run's fine texture, under "
        f"Tenuto's default at 20 % of the work {ours} times. "
    )


def _pictures(bench: PictureBench, ways: dict[str, Way], lab: Lab) -> dict[str, Any]:
    steps = lab.steps or bench.steps
    found = {}
    for name, way in ways.items():
        images = bench.sample(steps, SHOWN)(way(steps, 1)).float().cpu()
        found[name] = {"sheet": b64encode(png_bytes(grid(images, SHOWN))).decode(), "texture": _texture(images)}
    return found


def _texture(images: torch.Tensor) -> float:
    """The mean energy of pictures [B, C, H, W] above half of the highest frequency."""
    spectrum = torch.fft.rfft2(images, norm="ortho").abs().square()
    rows = torch.fft.fftfreq(images.shape[-2]).abs()[:, None]
    columns = torch.fft.rfftfreq(images.shape[-1])[None, :]
    return float(spectrum[..., torch.maximum(rows, columns) > HIGH / 2].sum() / len(images))


def _wrong(bench: TextBench, way: str, one: dict[str, Any]) -> ClaimRow:
    """How many answers are wrong. Only sums carry, and the paper's claim is about those that do."""
    shown = f"; e.g. {'; '.join(one['wrong'][:2])}" if one["wrong"] else ""
    if _sums(bench) is None:
        quantity = f"{way}: wrong answers among {one['asked']} of the kind {bench.asked[0]}, share"
        return ClaimRow(quantity, bench.model.name, None, one["share"], note=f"these problems carry nothing{shown}")
    quantity = f"{way}: wrong sums among {one['asked']} that carry, share"
    holds = _carried(way == "τ = 2", one["share"], one["plain"])
    note = f"without a carry {one['plain']:.2f}{shown}"
    return ClaimRow(quantity, bench.model.name, None, one["share"], holds=holds, note=note)


def _answers(bench: TextBench, ways: dict[str, Way]) -> dict[str, Any]:
    """The wrong answers of each way; of sums, those that carry apart from the others."""
    sums = _sums(bench)
    task = sums or bench.asked[0]
    posed = [problem for seed in bench.seeds for problem in bench.some(task, seed)]
    asked = [bench.model.tokenizer.decode(problem["prompt"]) for problem in posed]
    carries = [sums is None or _carries(question) for question in asked]
    found = {}
    for name, way in ways.items():
        written = bench.answers(way, task, bench.steps)
        solved = as_expected(written, posed, bench.end)
        wrong: dict[bool, list[bool]] = {True: [], False: []}
        told: list[str] = []
        for question, carrying, row, right in zip(asked, carries, written, solved, strict=True):
            wrong[carrying].append(not right)
            if not right:
                told.append(f"{question.strip()[-60:]} → {bench.model.tokenizer.decode(row)[:12]!r}")
        found[name] = {
            "asked": len(wrong[True]),
            "share": _share(wrong[True]),
            "plain": _share(wrong[False]),
            "wrong": told[:4],
        }
    return found


def _sums(bench: TextBench) -> str | None:
    """The task that asks for sums, if there is one."""
    return next((task for task in bench.asked if task.startswith(SUMS)), None)


def _carries(question: str) -> bool:
    """Whether the last digits of the two numbers add up to more than nine, or subtract to less than zero."""
    numbers = [
        int("".join(c for c in word if c.isdigit())) for word in question.split() if any(c.isdigit() for c in word)
    ]
    if len(numbers) < 2:
        return False
    one, other = numbers[0] % 10, numbers[1] % 10
    return one + other > 9 if " more" in question or " + " in question else one < other


def _share(found: list[bool]) -> float:
    return sum(found) / len(found) if found else 0.0
