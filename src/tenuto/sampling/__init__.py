"""The loops that call a network step after step: from noise to pictures, from masks to text."""
