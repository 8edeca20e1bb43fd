"""Training speed of the trainer template. See benchmarks/README.md."""
