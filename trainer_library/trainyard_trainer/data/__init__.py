"""Training and held-out examples: loading, reading files, and dividing them between processes."""
