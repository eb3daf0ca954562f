"""Scripts that measure: `python -m benchmarks.readme --help`, and so on."""
