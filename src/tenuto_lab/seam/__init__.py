"""diffusers' denoisers, whose residual additions go through the seam, so that their units can be held."""
