"""The laboratory: what judges Tenuto, what it is compared with, and the paper's experiments."""
