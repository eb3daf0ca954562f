"""A problem whose exact answer is known, to choose the engine's constants by, without any network."""
