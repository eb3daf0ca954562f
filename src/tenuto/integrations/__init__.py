"""Other people's code, brought to the package's seam."""
