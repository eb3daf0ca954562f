"""Who judges samples: classifiers, a language model, distances between sets, and intervals."""
