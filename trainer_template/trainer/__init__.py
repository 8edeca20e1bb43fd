"""A trainer to copy: task.py."""
