"""The picture of natural pictures compares ways of as much work as it says."""

import tenuto
from benchmarks.natural import BUDGET, PAPER, STEPS, ways


def test_the_ways_compute_what_their_names_say() -> None:
    full, default, fewer, paper = ways(tenuto.load("tiny-dit")).items()
    assert full[1][1] is None and full[1][0].steps == STEPS
    assert default[1][1] is not None and abs(default[1][1].budget - BUDGET) < 0.03
    assert fewer[1][0].steps == default[1][1].full_steps.sum() and str(fewer[1][0].steps) in fewer[0]
    assert paper[1][1] is not None and abs(paper[1][1].budget - PAPER) < 0.05
