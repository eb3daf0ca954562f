"""`tenuto lab eval compare`: two runs on the same questions."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tenuto.cli.app import AsJson
from tenuto_lab.cli.app import evaluation, interval


@evaluation.command(epilog="Example: tenuto lab eval compare full.json held.json")
def compare(
    first: Annotated[Path, typer.Argument(help="Results of `tenuto lab eval lm`.")],
    second: Annotated[Path, typer.Argument(help="Results of another run on the same questions.")],
    as_json: AsJson = False,
) -> None:
    """Compare two runs question by question: the difference, its interval, and whether it may be chance."""
    from tenuto.cli.console import counted, print_json, tell
    from tenuto_lab.full_size.paired_runs import compare as compared

    differences = compared(first, second)
    if as_json:
        print_json([asdict(one) for one in differences])
        return
    for one in differences:
        value, low, high = one.difference
        tell(
            f"{one.task}: {one.first:.3f} → {one.second:.3f}, difference {value:+.3f}"
            f"{interval(low, high, one.questions, '+.3f')}, p = {one.p:.3g} ({one.test}); "
            f"{counted(one.questions, 'question')}, {one.only_first} better in the first only, "
            f"{one.only_second} in the second"
        )
