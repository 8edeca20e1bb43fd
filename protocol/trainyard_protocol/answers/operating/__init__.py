"""Answers about the operation of a site: usage, notifications, debugging."""

from trainyard_protocol.answers.operating import accounting as accounting
from trainyard_protocol.answers.operating import debugging as debugging
from trainyard_protocol.answers.operating import notifications as notifications
