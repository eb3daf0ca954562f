"""Chores of the project: `python -m scripts.floors --help`."""
