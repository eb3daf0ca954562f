"""Tenuto or a better solver? How near N evaluations come to the full run, and to the converged one."""
