"""From weights to scores: no model is built, and no GPU is needed."""
