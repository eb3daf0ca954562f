"""Schedules that hold single units: the lifetimes of the paper, and how a network runs under such a schedule."""
