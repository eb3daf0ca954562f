"""Running a network under a schedule: what is computed, what is held, and CUDA graphs of both."""
