"""diffusers' pipelines: one call makes them faster, another call restores them."""
