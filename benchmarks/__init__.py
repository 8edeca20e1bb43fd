"""Benchmarks, run manually: each folder is a program."""
