"""diffusers' own denoisers, whose residual additions go through the seam."""
