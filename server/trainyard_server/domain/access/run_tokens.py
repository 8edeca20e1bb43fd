"""Tokens of runs, for the storage alone: what a program of a job reads and writes buckets of its project with. Pure."""

import hashlib
import hmac
import re

from trainyard_protocol.answers.people import TOKEN_PREFIX

_PREFIX = f"{TOKEN_PREFIX}run."
_SIGNED = re.compile(r"([0-9A-Za-z]{1,64})\.([0-9a-f]{64})")
_LABEL = b"tokens of runs"  # the key signs other things too


class RunTokens:
    """A token is a run's id with a signature. Whether the run lives is not for this to say."""

    def __init__(self, key: bytes) -> None:
        self._key = hmac.digest(key, _LABEL, hashlib.sha256)

    def token(self, run_id: str) -> str:
        return f"{_PREFIX}{run_id}.{self._signature(run_id)}"

    def run_id(self, secret: str) -> str:
        """The run whose token this is; "" if it is none of ours."""
        match = _SIGNED.fullmatch(secret.removeprefix(_PREFIX)) if secret.startswith(_PREFIX) else None
        if match is None or not hmac.compare_digest(match[2], self._signature(match[1])):
            return ""
        return match[1]

    def _signature(self, run_id: str) -> str:
        return hmac.new(self._key, run_id.encode(), hashlib.sha256).hexdigest()
