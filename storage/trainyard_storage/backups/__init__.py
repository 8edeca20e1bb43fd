"""Copies of the storage for backups."""
