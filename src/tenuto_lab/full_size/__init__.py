"""Evaluation at full size: samples made by many processes, published metrics, and language tasks."""
