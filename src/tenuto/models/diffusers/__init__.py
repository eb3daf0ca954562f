"""What is known of diffusers' pipelines: which parts denoise, whether their weights changed, and private names."""
