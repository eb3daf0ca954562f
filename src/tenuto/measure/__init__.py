"""Measures of what holding costs and gains: quality, drift and time."""
