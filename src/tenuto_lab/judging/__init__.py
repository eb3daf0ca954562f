"""Judges of samples: classifiers, a language model, distances between sets of samples, and intervals."""
