"""What is computed at which step: plain numbers, decided before the run, without reading any weight."""
