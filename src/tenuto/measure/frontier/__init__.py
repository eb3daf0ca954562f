"""Quality against work and against time, for every policy and for its rivals, on one network from the same noise.

    frontier = measure(case_of(model, steps=50, samples=100), print)

A point is one way of spending work: a schedule, fewer steps, another solver, another cacher. Every point makes the same
samples; what that costs and how far it is from the full run, from the converged one and from real samples is one row
for each seed. Differences between two points are tested pair by pair.
"""

from tenuto.measure.frontier.cases import Case, case_of, measure
from tenuto.measure.frontier.pictures import Pictures, measure_pictures
from tenuto.measure.frontier.rows import Comparison, Frontier, Row
from tenuto.measure.frontier.texts import Texts, measure_texts

__all__ = [
    "Case",
    "Comparison",
    "Frontier",
    "Pictures",
    "Row",
    "Texts",
    "case_of",
    "measure",
    "measure_pictures",
    "measure_texts",
]
