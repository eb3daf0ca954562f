"""Every fuzzer for a bounded time, from one seed, and a record of what came of it: `make fuzz`."""

import argparse
import warnings
from pathlib import Path
from typing import Any

from tenuto.files import write_json
from tenuto.provenance import provenance
from tests.fuzz import commands, eval_workers, files, soak, table

RECORD = Path(__file__).parents[2] / "results" / "fuzz" / "fuzz.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=3000, help="mutated files")
    parser.add_argument("--commands", type=int, default=300, help="command lines")
    parser.add_argument("--generations", type=int, default=2000, help="of the soak")
    parser.add_argument("--faults", type=int, default=180, help="of workers and disks, for 2, 3 and 4 workers")
    parser.add_argument("--seconds", type=float, default=1200, help="for the soak at most")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {"provenance": provenance(seed=asked.seed)}  # now: a fuzzer calls commands of its own

    def note(part: str, found: Any, line: str) -> None:
        """Written after every part, so that a run that is ended early leaves a record of what was done."""
        record[part] = found
        write_json(RECORD, record)
        print(line, flush=True)

    mutated = files.fuzz(asked.files, asked.seed)
    note("files", mutated, files.line(mutated))
    called = commands.fuzz(asked.commands, asked.seed)
    note("commands", called, commands.line(called))
    soaked = soak.soak(
        asked.generations, asked.seed, seconds=asked.seconds, note=lambda found: note("soak", found, soak.line(found))
    )
    workers = str(eval_workers.fuzz(asked.seed, 0.0, asked.faults))
    note("workers", workers, workers)
    table.main()
    bare = mutated["bare_exceptions"] or called["bare_exceptions"]
    raise SystemExit(1 if bare or soaked["stale"] or soaked["leaked"] else 0)


if __name__ == "__main__":
    main()
