"""How fast the trainer template trains, next to the same training written by hand. See benchmarks/README.md."""
