"""A frontier: quality against work and against time, for our policies and their rivals, on one network.

    frontier = measure(case_of(model, steps=50, samples=100), print)

A point is one way of spending work: a schedule, fewer steps, another solver, another cache. Every point makes the same
samples from the same noise. Each seed gives one measurement: the cost of the samples, and their distance from the full
run, from the converged run and from real samples. Two points are compared sample by sample, with a paired test.
"""

from tenuto_lab.frontier.cases import Case, case_of, measure
from tenuto_lab.frontier.drawing import DrawingCase, measure_pictures
from tenuto_lab.frontier.measurements import Comparison, Frontier, Measurement
from tenuto_lab.frontier.writing import WritingCase, measure_texts

__all__ = [
    "Case",
    "Comparison",
    "DrawingCase",
    "Frontier",
    "Measurement",
    "WritingCase",
    "case_of",
    "measure",
    "measure_pictures",
    "measure_texts",
]
