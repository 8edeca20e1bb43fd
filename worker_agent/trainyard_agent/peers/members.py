"""Questions among agents: does the other one have answers of the server? Is it reached at all?

Each agent with an address listens there. A line `ASKER NONCE` is answered with `AGENT yes|no SIGNATURE`: whether it has
no answer of the server.
"""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

from trainyard_agent.lease.majority import Majority, Word
from trainyard_agent.peers.reach import Reach
from trainyard_agent.peers.unreached import UnreachedPeers
from trainyard_agent.runtimes.ports import NoFreePort, addresses, host_and_port
from trainyard_protocol.wire.peers import Peers, signature

_ROUND_S = 1.0
_ANSWER_S = 3.0
_LONGEST_LINE = 512

_log = logging.getLogger(__name__)

Ask = Callable[[str, str, Peers], Awaitable[Word | None]]
"""Asks the agent of that id, at that address. None: it does not answer."""


class PeerMembers:
    """This agent among the others of its server."""

    def __init__(self, majority: Majority, reach: Reach, ask: Ask | None = None) -> None:
        """`ask`: how another agent is asked, if not over the network."""
        self.majority = majority
        self.unreached = UnreachedPeers(majority.clock)
        self._ask = ask or self._ask_over_network
        self._reach = reach
        self._server: asyncio.Server | None = None
        self.address = ""
        """The address (`host:port`) at which it answers; "" until it does."""

    async def open(self) -> None:
        """Listen at the address of this machine, if it has one."""
        if not self._reach.address:
            return
        try:
            (address,) = addresses(self._reach.address, [self.majority.agent_id], (), self._reach.ports).values()
            self._server = await asyncio.start_server(self._answer, *host_and_port(address), limit=_LONGEST_LINE)
        except (NoFreePort, OSError) as error:
            _log.warning("other agents cannot ask this one: %s", error)
        else:
            self.address = address

    def close(self) -> None:
        """Answer nobody any more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def round(self) -> float:
        """Ask the others, if it is time, and keep the lease by what they say. Returns how long to pause. Raises
        OSError."""
        asked_at, peers, questions = self.majority.clock.monotonic(), self.majority.peers, self.majority.questions()
        addresses = {} if peers is None else peers.addresses
        self.unreached.keep_to(addresses)
        if peers is not None:
            questions = {**questions, **dict(self.unreached.to_ask_again(addresses))}
            words = await asyncio.gather(*(self._ask(peer, questions[peer], peers) for peer in questions))
            for peer, word in zip(questions, words, strict=True):
                self.unreached.record(peer, answered=word is not None)
                if word is not None:
                    self.majority.record_word(peer, word, asked_at)
            self.majority.keep()
        return _ROUND_S

    async def _ask_over_network(self, peer: str, address: str, peers: Peers) -> Word | None:
        """The peer's own word; None if it does not answer."""
        me, nonce, words = self.majority.agent_id, secrets.token_hex(16), list[str]()
        with suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection(*host_and_port(address), limit=_LONGEST_LINE)
                try:
                    writer.write(f"{me} {nonce}\n".encode())
                    words = (await reader.readline()).decode("ascii", "replace").split()
                finally:
                    writer.close()
        for word in ("yes", "no"):
            right = signature(peers.key, peer, me, nonce, word)
            if words[:2] == [peer, word] and hmac.compare_digest(right, words[-1]):
                return word
        return None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                words = (await reader.readline()).decode("ascii", "replace").split()
                if len(words) == 2 and self.majority.peers is not None:
                    (asker, nonce), word = words, self.majority.word
                    me = self.majority.agent_id
                    signed = signature(self.majority.peers.key, me, asker, nonce, word)
                    writer.write(f"{me} {word} {signed}\n".encode())
                    await writer.drain()
        writer.close()
