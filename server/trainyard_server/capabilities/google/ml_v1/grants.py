"""Lifetime of the keys of service accounts for Google's clients, apart from their cryptography, which takes long to
load."""

from datetime import timedelta

KEY_LIFETIME = timedelta(days=366)

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"
