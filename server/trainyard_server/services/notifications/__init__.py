"""Channels of projects, and the delivery of notifications."""
