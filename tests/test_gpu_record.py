"""The GPU tests were run on the code as it is: no machine of CI's has a GPU, so their last run is recorded."""

import pytest

from tests.gpu_run import RECORD, digest, digests, recorded


def test_the_recorded_run_passed() -> None:
    """A failure counts unless "explained" says why it says nothing of the code, such as a test that was wrong."""
    run = recorded()
    assert run["passed"] > 0 and set(run["failed"]) <= set(run["explained"])


def test_what_runs_on_the_gpu_was_tested_there() -> None:
    """A change that was not run on a GPU is either run there or named, with its reason, under "changed_since"."""
    run = recorded()
    changed = {path for path, found in digests().items() if run["files"].get(path) != found}
    unexplained = sorted(changed - set(run["changed_since"]))
    if unexplained:
        pytest.fail(
            f"{', '.join(unexplained)} changed since the GPU tests were last run, at {run['provenance']['commit']}. "
            f"Run `make test-gpu` on a machine with a GPU. If the change cannot matter there, say why in {RECORD.name} "
            'under "changed_since": {"path": "reason"}.'
        )


def test_wording_asks_for_no_gpu() -> None:
    one, other = '"""One."""\nx = 1  # a\n', '"""Other."""\n\nx = 1\n'
    assert digest(one) == digest(other) != digest("x = 2\n")
