"""The result as a file and as a table: which pipelines work, which are refused, which could not be tried."""

from collections import Counter
from pathlib import Path
from typing import Any

from tenuto.files import write_json, write_text
from tenuto.provenance import origin
from tenuto_lab.result_files import ORIGIN, both, fields, makes, one_of, optional, shaped

ORDER = ("fails", "refused", "in full", "works", "not built", "not tried")
MEANING = {
    "works": "identical to the untouched pipeline at budget 1 and after `disable`; a quarter saves evaluations",
    "in full": "everything was computed, and the summary says why",
    "refused": "`tenuto.enable` raises an error that says why; the six that it knows by name were not built",
    "fails": "enabled, it does something else than the untouched pipeline, or raises an error",
    "not built": "the untouched pipeline could not be built or run here, or takes too long",
    "not tried": "an exported class that no test of diffusers builds, that is abstract, or a placeholder",
}


def verdict_of(rows: list[dict[str, Any]]) -> str:
    """The verdict on a class that several tests build: the worst of what was tried."""
    return min((row["verdict"] for row in rows if row["verdict"] != "not built"), key=ORDER.index, default="not built")


def by_class(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    classes: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["key"]):
        classes.setdefault(row["pipeline"], []).append(row)
    return classes


def counts_of(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Classes by verdict: of ordinary and of modular pipelines."""
    classes = by_class(rows)
    found: dict[str, dict[str, int]] = {}
    for kind in ("ordinary", "modular"):
        told = Counter(
            verdict_of(tests) for name, tests in classes.items() if ("Modular" in name) == (kind == "modular")
        )
        found[kind] = {verdict: told[verdict] for verdict in reversed(ORDER)}
    return found


def written(out: Path, made: dict[str, Any], rows: list[dict[str, Any]], failed: dict[str, str]) -> None:
    classes, counts = by_class(rows), counts_of(rows)
    result = {"provenance": made, "counts": counts, "tests_not_imported": failed}
    write_json(out, {**result, "pipelines": [row for tests in classes.values() for row in tests]})
    write_text(out.with_suffix(".md"), page(made, rows))


def page(made: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    classes, counts = by_class(rows), counts_of(rows)
    lines = ["# Coverage", "", f"Written by {origin(made)}; diffusers' tests of commit {made['checkout']}."]
    if "again" in made:
        again = made["again"]
        lines.append(f"Some were tried again (`--retry --only …`) at {again['commit']}, {again['date']}.")
    lines.append("")
    lines += ["Every pipeline class that diffusers exports, by the worst verdict of the tests that build it:", ""]
    lines += [told_in_words(counts), "", share_in_words(rows), ""]
    lines += ["| | " + " | ".join(reversed(ORDER)) + " |", "| --- |" + " ---: |" * len(ORDER)]
    for kind, told in counts.items():
        lines.append(f"| {kind} | " + " | ".join(str(told[verdict]) for verdict in reversed(ORDER)) + " |")
    lines += ["", *(f"- *{verdict}*: {MEANING[verdict]}" for verdict in reversed(ORDER)), ""]
    lines += [
        "Each pipeline takes 16 steps (or as many as its strength leaves). A quarter of 16 is six, the least that a"
    ]
    lines += [
        "budget gives. Distance: ‖held − untouched‖ / ‖untouched‖ of all that the pipeline returns. The networks are"
    ]
    lines += ["random, so it says only that the result is near, not that a picture is good.", ""]
    for verdict in ORDER:
        chosen = {name: tests for name, tests in classes.items() if verdict_of(tests) == verdict}
        if chosen:
            lines += [f"## {verdict[0].upper()}{verdict[1:]}", "", *_table(verdict, chosen), ""]
    return "\n".join(lines)


def told_in_words(counts: dict[str, dict[str, int]]) -> str:
    """The counts that matter, of ordinary and modular pipelines together."""
    told = {verdict: sum(kind[verdict] for kind in counts.values()) for verdict in ORDER}
    built = sum(told[verdict] for verdict in ("works", "in full", "fails"))
    return (
        f"Of {built} classes that were built and could be enabled, {told['works']} save evaluations, "
        f"{told['in full']} are computed in full (their table says why), and {told['fails']} fail. "
        f"{told['refused']} are refused, {told['not built']} could not be built here, and {told['not tried']} were not "
        "tried (their tables say why)."
    )


def share_in_words(rows: list[dict[str, Any]]) -> str:
    """How large a share of the classes that could be built does what is promised, and how large a share saves."""
    built = {name: tests for name, tests in by_class([row for row in rows if "· exported" not in row["key"]]).items()
             if verdict_of(tests) not in ("not built", "not tried")}  # fmt: skip
    told = Counter(verdict_of(tests) for tests in built.values())
    right = told["works"] + told["in full"]
    helped = sum(
        any(row.get("instead") and "why" not in row["instead"] for row in tests)
        for tests in built.values()
        if verdict_of(tests) == "in full"
    )

    def share(number: int) -> str:
        return f"{number} of {len(built)} ({number / max(1, len(built)):.1%})"

    return (
        f"Of the classes that were built, {share(right)} are identical to the untouched pipeline at budget 1 and after "
        "`disable`, with every evaluation counted, and either save evaluations at a quarter or say why not. "
        f"{share(told['works'])} save evaluations as the tests build them. {share(told['works'] + helped)} do so if a "
        "scheduler that adds noise is replaced by one that adds none, and if more steps are taken where strength "
        "leaves three. The rest accept no other scheduler, or are refused."
    )


def _instead(rows: list[dict[str, Any]]) -> str:
    """The cells of a class that is computed in full: what helps, and what it saves."""
    told = next((row["instead"] for row in rows if row.get("instead")), None)
    if told is None or "why" in told:
        return f"{told['how']}: {told['why'][:120]} | | |" if told else "| | |"
    counts = [", ".join(f"{count} {name}" for name, count in told[key].items()) for key in ("full", "evaluations")]
    return f"{told['how']} | {counts[0]} | {counts[1]} | {told['distance']}"


def _table(verdict: str, classes: dict[str, list[dict[str, Any]]]) -> list[str]:
    if verdict == "works":
        lines = ["| pipeline | untouched | a quarter | distance | ten evaluations | distance | scheduler |"]
        lines.append("| --- | --- | --- | --- | --- | --- | --- |")
        for name, tests in classes.items():
            row = next(row for row in tests if row["verdict"] == "works")
            schedulers = ", ".join(key.removesuffix(".step") for key in row["loop"].get("schedulers", {}))
            cells = [name, _named(row, row["full"])]
            for wish in ("a quarter", "ten evaluations"):
                cells += [_named(row, row[wish]["evaluations"]), str(row[wish]["distance"])]
            lines.append(f"| {' | '.join([*cells, schedulers])} |")
        return lines
    full = verdict == "in full"
    lines = ["| pipeline | why |" + " instead | untouched | a quarter | distance |" * full]
    lines.append("| --- | --- |" + " --- | --- | --- | --- |" * full)
    for name, tests in classes.items():
        row = min(tests, key=lambda row: ORDER.index(row["verdict"]))
        why = " ".join(row["why"].split()).replace("|", "\\|")
        lines.append(f"| {name} | {why[:220]} |" + full * f" {_instead(tests)} |")
    return lines


def _named(row: dict[str, Any], counts: dict[str, int]) -> str:
    return ", ".join(f"{counts.get(name, 0)} {name}" for name in row["denoisers"])


TRIED = {"evaluations": {str: int}, "distance": float | None}
TRIAL = fields(
    {**{name: shaped(str) for name in ("pipeline", "key", "why")}, "verdict": one_of(*ORDER)},
    {
        "full": optional(shaped({str: int})),
        "denoisers": optional(shaped([str])),
        "instead": optional(
            fields(
                {"how": shaped(str)},
                {"full": optional(shaped({str: int})), "evaluations": optional(shaped({str: int})), "why": shaped(str)},
                others=True,
            )
        ),
        "loop": optional(fields({}, {"schedulers": shaped({str: int})}, others=True)),
        **{wish: optional(shaped(TRIED)) for wish in ("a quarter", "ten evaluations")},
    },
    others=True,
)
MADE = fields({**{name: shaped(str) for name in (*ORIGIN, "checkout")}}, {"again": shaped(ORIGIN)}, others=True)
RECORD = both(
    shaped({"provenance": MADE, "pipelines": [TRIAL]}),
    makes(lambda record: page(record["provenance"], record["pipelines"])),
)
