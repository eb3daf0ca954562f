"""The loops that call a denoiser step after step."""
