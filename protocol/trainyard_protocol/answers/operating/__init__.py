"""Answers about the operation of a site: usage, notifications, debugging."""
