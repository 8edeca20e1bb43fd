"""Measurements that are run by hand: each folder is a program of its own."""
