"""Questions among agents: does the other one have answers of the server?

Each agent with an address listens there. A line `ASKER NONCE` is answered with `AGENT yes|no SIGNATURE`: whether it has
no answer of the server.
"""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

from trainyard_agent.host.clock import Clock
from trainyard_agent.lease.majority import Majority, Word
from trainyard_agent.peers.reach import Reach
from trainyard_agent.runtimes.ports import NoFreePort, free_ports
from trainyard_protocol.wire.peers import Peers, signature

_ROUND_S = 1.0
_ANSWER_S = 3.0
_LONGEST_LINE = 512

_log = logging.getLogger(__name__)


Ask = Callable[[str, str, Peers], Awaitable[Word | None]]
"""Asks the agent of that id, at that address. None: it does not answer."""


class PeerMembers:
    """This agent among the others of its server."""

    def __init__(self, agent_id: str, majority: Majority, clock: Clock, reach: Reach, ask: "Ask | None" = None) -> None:
        """`ask`: how another agent is asked, if not over the network."""
        self.majority = majority
        self._ask = ask or self._ask_over_network
        self._me = agent_id
        self._clock = clock
        self._reach = reach
        self._server: asyncio.Server | None = None
        self.address = ""
        """Where it answers; "" until it does."""

    async def open(self) -> None:
        """Listen at the address of this machine, if it has one."""
        if not self._reach.address:
            return
        try:
            (port,) = free_ports(1, frozenset(), self._reach.ports)
            self._server = await asyncio.start_server(self._answer, self._reach.address, port, limit=_LONGEST_LINE)
        except (NoFreePort, OSError) as error:
            _log.warning("other agents cannot ask this one: %s", error)
        else:
            self.address = f"{self._reach.address}:{port}"

    def close(self) -> None:
        """Answer nobody any more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def round(self) -> float:
        """Ask the others, if it is time, and keep the lease by what they say. Returns how long to pause. Raises
        OSError."""
        asked_at, peers, questions = self._clock.monotonic(), self.majority.peers, self.majority.questions()
        if peers is not None:
            words = await asyncio.gather(*(self._ask(peer, questions[peer], peers) for peer in questions))
            for peer, word in zip(questions, words, strict=True):
                if word is not None:
                    self.majority.record_word(peer, word, asked_at)
            self.majority.keep()
        return _ROUND_S

    async def _ask_over_network(self, peer: str, address: str, peers: Peers) -> Word | None:
        """The peer's own word; None if it does not answer."""
        host, _, port = address.rpartition(":")
        nonce, words = secrets.token_hex(16), list[str]()
        with suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=_LONGEST_LINE)
                try:
                    writer.write(f"{self._me} {nonce}\n".encode())
                    words = (await reader.readline()).decode("ascii", "replace").split()
                finally:
                    writer.close()
        for word in ("yes", "no"):
            right = signature(peers.key, peer, self._me, nonce, word)
            if words[:2] == [peer, word] and hmac.compare_digest(right, words[-1]):
                return word
        return None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                words = (await reader.readline()).decode("ascii", "replace").split()
                if len(words) == 2 and self.majority.peers is not None:
                    (asker, nonce), word = words, self.majority.word
                    signed = signature(self.majority.peers.key, self._me, asker, nonce, word)
                    writer.write(f"{self._me} {word} {signed}\n".encode())
                    await writer.drain()
        writer.close()
