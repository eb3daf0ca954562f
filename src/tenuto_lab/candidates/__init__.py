"""Ways of deciding and of running that were measured and lost."""
