"""Every fuzzer for a bounded time, from one seed, and a record of what came of it: `make fuzz`."""

import argparse
import warnings
from pathlib import Path

from tenuto.files import write_json
from tenuto.provenance import provenance
from tests.fuzz import eval_workers, files, soak, table

RECORD = Path(__file__).parents[2] / "results" / "fuzz" / "fuzz.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=3000, help="mutated files")
    parser.add_argument("--generations", type=int, default=2000, help="of the soak")
    parser.add_argument("--faults", type=int, default=60, help="of workers and disks")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    made = provenance(seed=asked.seed)  # now, because a fuzzer calls commands of its own
    mutated = files.fuzz(asked.files, asked.seed)
    print(files.line(mutated), flush=True)
    soaked = soak.soak(asked.generations, asked.seed)
    print(soak.line(soaked), flush=True)
    workers = str(eval_workers.fuzz(asked.seed, 600.0, asked.faults))
    print(workers, flush=True)
    record = {"provenance": made, "files": mutated, "soak": soaked, "workers": workers}
    write_json(RECORD, record)
    table.main()
    clean = not mutated["bare_exceptions"] and not soaked["stale"] and not soaked["leaked"]
    raise SystemExit(0 if clean else 1)


if __name__ == "__main__":
    main()
