"""Evaluation at full size: samples made by many processes, and what they are worth."""
