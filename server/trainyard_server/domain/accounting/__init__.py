"""Sums of what runs used. Pure."""
