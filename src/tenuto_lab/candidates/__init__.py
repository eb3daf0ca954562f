"""Policies and executors that were measured and lost."""
