"""Evaluation at full size: many processes make samples; published metrics and language tasks judge them."""
