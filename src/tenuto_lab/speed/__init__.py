"""Speed: one network run in many ways, beside the hardware's limits."""
