"""Figures of the installation for a monitoring system."""
