"""Backups: archives of all that the service stores, their schedule, and the examination of what is stored."""
