"""Reports of usage, and what follows from it: fair share, and idle GPUs."""
