"""Runtimes, which run replicas. `base` is their contract; all of them pass the same tests."""
