"""`tenuto doctor`: what this machine has for Tenuto, and what to install for what it lacks."""

import typer
from rich.markup import escape
from rich.table import Table

from tenuto.cli.console import out, print_json
from tenuto.doctor import Diagnosis, diagnose

MARKS = {"fine": "[green]✓[/]", "absent": "[yellow]–[/]", "broken": "[red]✗[/]"}


def run(network: bool, as_json: bool) -> None:
    diagnosis = diagnose(network)
    if as_json:
        print_json(diagnosis.to_json())
    else:
        _tell(diagnosis)
    if not diagnosis.healthy:
        raise typer.Exit(1)


def _tell(diagnosis: Diagnosis) -> None:
    hardware = diagnosis.hardware
    facts = Table.grid(padding=(0, 2))
    facts.add_column(justify="right", style="dim")
    facts.add_column()
    for name, number in diagnosis.versions.items():
        facts.add_row(name, number or "[dim]not installed[/]")
    facts.add_row("CUDA", hardware["cuda"] or "[dim]not in this torch[/]")
    facts.add_row("CPU", escape(f"{hardware['cpu']}, {hardware['cores']} cores"))
    for gpu in hardware["gpus"]:
        facts.add_row("GPU", escape(f"{gpu['name']}, {gpu['gib']} GiB, capability {gpu['capability']}"))
    out.print(facts)
    findings = Table.grid(padding=(0, 2))
    for finding in diagnosis.findings:
        remedy = f"\n[dim]→ {escape(finding.remedy)}[/]" if finding.remedy else ""
        findings.add_row(MARKS[finding.status], finding.name, escape(finding.what) + remedy)
    out.print()
    out.print(findings)
    out.print("\nNothing is broken." if diagnosis.healthy else "\n[bold]Something is broken[/]: see ✗ above.")
