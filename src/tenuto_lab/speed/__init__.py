"""Speed: one network run in many ways, compared with the hardware's limits."""
