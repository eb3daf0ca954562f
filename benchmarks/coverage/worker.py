"""A process that tries the pipelines whose numbers it reads from its input, and prints one line of JSON for each."""

import json
import os
import sys
import warnings
from pathlib import Path

MARK = "@@"


def main() -> None:
    warnings.filterwarnings("ignore")
    os.environ |= {"HF_HUB_OFFLINE": "1", "DIFFUSERS_TEST_DEVICE": "cpu", "TRANSFORMERS_VERBOSITY": "error"}
    import torch
    from diffusers.utils import logging

    from benchmarks.coverage import hub
    from benchmarks.coverage.cases import cases_in
    from benchmarks.coverage.trial import attempt

    logging.set_verbosity_error()
    torch.set_num_threads(1)
    hub.install()
    hub.shrink_pictures()
    checkout = Path(sys.argv[1])
    cases, failed = cases_in(checkout)
    print(
        MARK + json.dumps({"cases": [vars(case) | {"key": case.key} for case in cases], "failed": failed}), flush=True
    )
    for line in sys.stdin:
        print(MARK + json.dumps(attempt(cases[int(line)])), flush=True)


if __name__ == "__main__":
    main()
