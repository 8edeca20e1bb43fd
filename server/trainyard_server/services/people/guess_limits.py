"""Limits of wrong credentials, by address or account.

Only wrong ones are counted, after they were checked: the right credential is accepted at any time, from any address, so
nobody can shut out another by guessing. In the memory of this server process.
"""

import asyncio
import ipaddress
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trainyard_protocol.errors import TooManyRequests, TrainyardError
from trainyard_server.services.people.limits import TokenBuckets
from trainyard_server.storage.agent_liveness import Stopwatch

PER_MINUTE = 10
"""Wrong credentials of one address or account that are answered as such: so many at once, then so many a minute."""

_REMEMBERED = 1000
_LONGEST_KEY = 100
_NETWORK_BITS = 64  # of IPv6: what one household or machine has


class TooManyGuesses(TooManyRequests):
    """Too many wrong credentials came from there. This one was wrong, too."""

    def __init__(self, error: TrainyardError, wait_s: int) -> None:
        super().__init__(
            f"{error.message} Too many wrong ones came from your address: try the next in {wait_s} s. "
            "The right one is accepted at any time.",
            wait_s,
        )


class GuessLimits:
    """Counts wrong credentials by `who`: the address of a client, or the name of an account where one is known."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._buckets = TokenBuckets(PER_MINUTE / 60, PER_MINUTE, _REMEMBERED, stopwatch)
        self._one_by_one = asyncio.Lock()

    def wrong(self, who: str, error: TrainyardError) -> TrainyardError:
        """Count a wrong credential. The error to raise: `error`, or TooManyGuesses beyond the limit."""
        wait_s = self._buckets.consume(_key(who))
        return TooManyGuesses(error, math.ceil(wait_s)) if wait_s else error

    @asynccontextmanager
    async def checking(self, who: str) -> AsyncIterator[None]:
        """Surround the check of a credential that needs the database or another service. Those of all who guessed too
        often are checked one after the other, so that a guesser takes the time of one thread and no more."""
        if not self._buckets.is_empty(_key(who)):
            yield
            return
        async with self._one_by_one:
            yield


def _key(who: str) -> str:
    """An IPv6 address counts as its network."""
    try:
        address = ipaddress.ip_address(who)
    except ValueError:
        return who[:_LONGEST_KEY]
    if address.version == 4:
        return who
    return str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))
