"""Training speed of the library of trainers. See benchmarks/README.md."""
