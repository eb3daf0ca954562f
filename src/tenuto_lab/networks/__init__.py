"""Architectures of the paper's experiments, beside those of the product (tenuto.models)."""
