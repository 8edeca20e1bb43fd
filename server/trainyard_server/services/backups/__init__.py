"""Backups: archives of all that the service stores, and the examination of what is stored."""
