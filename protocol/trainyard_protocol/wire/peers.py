"""Peers of an agent: the short lease of machines that reach each other, and the question that they ask each other.

With a short lease the runs of a lost machine soon start elsewhere. An agent whose server does not answer keeps that
lease for as long as a majority of the members, itself counted, has no answer either; the server takes an agent for
lost only while it and the agents that have its answers are a majority. Members are the server and the agents of the
list that the agent got last. The argument is in docs/design/0035-leases-by-majority.md; the times here are part of it,
so no setting changes them.
"""

import hashlib
import hmac

from pydantic import Field

from trainyard_protocol.message import Wire

SHORT_LEASE_S = 45.0
"""The lease of an agent that reaches a majority."""

WITHOUT_ANSWER_S = 15.0
"""An agent says that it has no answer of the server when it has had none for so long, and has lived for so long."""

HOLD_S = 5.0
"""How long the server holds the answer to an agent that has peers."""

OUTAGE_S = 24 * 3600.0
"""How long agents keep their leases by a majority, and how long a server without one waits beyond a lease."""

MOST_MEMBERS = 32
"""The most members. Where there are more each has the long lease, since all of them would ask each other."""


class Peers(Wire):
    """The addresses (`host:port`) at which other agents answer, by agent id, and the key that signs what they say."""

    key: str = Field(repr=False)
    addresses: dict[str, str]


def majority_of(agents: int) -> int:
    """Return the number of members that are a majority of these agents and their server."""
    return (agents + 1) // 2 + 1


def signature(key: str, speaker: str, asker: str, nonce: str, word: str) -> str:
    """The signature of an answer to a question with a nonce, which nobody can repeat."""
    return hmac.new(key.encode(), " ".join((speaker, asker, nonce, word)).encode(), hashlib.sha256).hexdigest()
