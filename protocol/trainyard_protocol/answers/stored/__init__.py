"""Answers about what a server stores: its backups."""

from trainyard_protocol.answers.stored import backups as backups
