"""diffusers' pipelines: made faster by one call, and left as they were by another."""
