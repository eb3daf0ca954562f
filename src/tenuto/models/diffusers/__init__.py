"""diffusers' own denoisers, their residual additions brought to the seam."""
