"""How long `import tenuto` and `tenuto --help` take, beyond starting Python: python -m benchmarks.importing

The median of fresh interpreters; with --limit it ends with 1 where `import tenuto` takes longer than so many seconds.
"""

import os
import subprocess
import sys
import time
from statistics import median
from typing import Annotated

import typer

from benchmarks.places import ROOT
from scripts.command_line import run

CODE = {
    "python itself": "pass",
    "import tenuto": "import tenuto",
    "tenuto --help": "import sys; sys.argv = ['tenuto', '--help']; from tenuto.cli import main; main()",
}


def main(
    repeats: Annotated[int, typer.Option(min=1, help="Interpreters started for each row.")] = 7,
    limit: Annotated[float, typer.Option(help="Seconds that `import tenuto` may take.")] = 0.1,
) -> None:
    taken = {name: median(_seconds(code) for _ in range(repeats)) for name, code in CODE.items()}
    for name, seconds in taken.items():
        print(f"{name:>14}  {seconds:.3f} s")
    added = taken["import tenuto"] - taken["python itself"]
    print(f"import tenuto takes {added:.3f} s; it may take {limit:g} s.")
    sys.exit(added > limit)


def _seconds(code: str) -> float:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - started


if __name__ == "__main__":
    run(main)
