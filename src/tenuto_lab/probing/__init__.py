"""Measurements inside a network while it runs: trajectories, drift, freeze errors, the paper's audit."""
