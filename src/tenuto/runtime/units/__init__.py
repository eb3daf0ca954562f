"""Schedules that hold single units: how a network's units follow one another, and where each is kept."""
