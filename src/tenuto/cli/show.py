"""`tenuto show`: score files, schedules and frontiers, as tables, pages and pictures."""

from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from tenuto.cli.console import out, print_json, say
from tenuto.errors import TenutoError, UsageError
from tenuto.files import check_writable, read_json
from tenuto.report.frontier import frontier_image, frontier_picture, frontier_tables, models_of, page_tables
from tenuto.report.maps import save_schedule_png, save_scores_png, terminal_map
from tenuto.report.page import write_page
from tenuto.schedules import FORMAT as SCHEDULE_FORMAT
from tenuto.schedules import Schedule
from tenuto.schedules import from_json as schedule_from_json
from tenuto.scores import FORMAT as SCORES_FORMAT
from tenuto.scores import Scores
from tenuto.scores import from_json as scores_from_json


def run(file: Path, html: Path | None, png: Path | None, as_json: bool) -> None:
    for written in (html, png):
        if written:
            check_writable(written, reads=[file])
    record = read_json(file, "score file, schedule or frontier")
    if record.get("format") == SCORES_FORMAT:
        scores = scores_from_json(record, str(file))
        if png:
            save_scores_png(scores, png)
        if html:
            write_page(
                html, title=f"Scores of {scores.model}", lead=str(file), facts=_scores_facts(scores), scores=scores
            )
        if not as_json:
            print_scores(scores)
    elif record.get("format") == SCHEDULE_FORMAT:
        schedule = schedule_from_json(record, str(file))
        if png:
            save_schedule_png(schedule, png)
        if html:
            facts = schedule_facts(schedule)
            write_page(html, title=f"Schedule for {schedule.model}", lead=str(file), facts=facts, schedule=schedule)
        if not as_json:
            print_schedule(schedule)
    elif record.get("cases") and record.get("rows"):
        _show_frontier(file, record, html, png)
        if not as_json:
            out.print(frontier_tables(record), markup=False, soft_wrap=True)
    else:
        raise TenutoError(
            f"{file} is neither a score file ({SCORES_FORMAT}) nor a schedule ({SCHEDULE_FORMAT}) nor a frontier: "
            f"its format is {record.get('format')!r}."
        )
    if as_json:
        print_json(record)
    for written in (html, png):
        if written:
            say(f"Wrote {written}")


def _show_frontier(file: Path, record: dict[str, Any], html: Path | None, png: Path | None) -> None:
    models = models_of(record)
    if png and len(models) > 1:
        raise UsageError(f"--png draws one model, and {file} has {len(models)}: {', '.join(models)}. --html has all.")
    if png:
        frontier_picture(record, models[0], png)
    if html:
        write_page(
            html,
            title="Quality against work and time",
            lead="Every way of spending less work, each on the same network from the same noise. Ours is the thick "
            "line, and its band the 95 % interval.",
            drawings=[(model, image) for model in models if (image := frontier_image(record, model))],
            tables=page_tables(record),
            facts={"file": file, **{case: made["hardware"] for case, made in record["cases"].items()}},
        )


def print_scores(scores: Scores) -> None:
    table = Table(
        title=f"{escape(scores.model)}: {len(scores.units)} units", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("unit", no_wrap=True, min_width=max(len(unit.name) for unit in scores.units))
    table.add_column("kind")
    for name in ("matrices", "raw q̃", "score Λ̂", "GFLOPs"):
        table.add_column(name, justify="right")
    table.add_column("")
    for unit in scores.units:
        matrices = sum(len(part.spectra) for part in unit.components)
        bar = "█" * round(unit.score * 20)
        cells = f"{unit.raw:.4g}", f"{unit.score:.4f}", f"{unit.flops / 1e9:.3g}"
        table.add_row(unit.name, unit.kind, str(matrices), *cells, f"[cyan]{bar}[/]")
    out.print(table)


def print_schedule(schedule: Schedule) -> None:
    for name, value in schedule_facts(schedule).items():
        out.print(f"[dim]{name:>12}[/] {escape(value)}")
    out.print(terminal_map(schedule, max(20, out.width - max(len(u) for u in schedule.units) - 2)))


def schedule_facts(schedule: Schedule) -> dict[str, str]:
    parameters = ", ".join(f"{k} {v:.4g}" for k, v in schedule.policy.items() if isinstance(v, int | float))
    return {
        "model": schedule.model,
        "policy": f"{schedule.policy.get('name', 'hand-made')}" + (f" ({parameters})" if parameters else ""),
        "steps": str(schedule.steps),
        "work": f"{schedule.budget:.1%} of unit-steps, {schedule.flop_budget:.1%} of their FLOPs"
        + (" (nothing is held)" if schedule.budget == 1 else ""),
        "reuse": f"{schedule.reuse} of the {schedule.hold}" + (", corrected" if schedule.corrected else ""),
        "patterns": str(schedule.patterns),
        "fingerprint": schedule.fingerprint[:23] + "…",
    }


def _scores_facts(scores: Scores) -> dict[str, str]:
    return {
        "model": scores.model,
        "architecture": scores.architecture,
        "η": str(scores.eta),
        "fingerprint": scores.fingerprint,
        "tenuto": scores.version,
    }
