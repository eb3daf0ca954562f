"""What is computed at which step: plain numbers, decided before the run; no weight is looked at."""
