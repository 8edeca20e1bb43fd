"""Limits by caller: requests a second, and open event streams. In the memory of this server process."""

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trainyard_protocol.errors import TooManyRequests
from trainyard_server.storage.agent_liveness import Stopwatch

BURST_S = 10.0
"""A caller that was quiet may send the requests of so many seconds at once, as a browser does that opens many tabs."""

_STREAM_RETRY_S = 10
_CALLERS = 10_000


@dataclass(slots=True)
class _Bucket:
    """A token bucket: `tokens` at the time `at`."""

    tokens: float
    at: float


class TokenBuckets:
    """A token bucket for each key, with `most` tokens at first and at most. Remembers the `keys` that were seen last.
    Thread-safe."""

    def __init__(self, per_second: float, most: float, keys: int, stopwatch: Stopwatch) -> None:
        self._per_second = per_second
        self._most = max(1.0, most)
        self._keys = keys
        self._stopwatch = stopwatch
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._buckets)

    def consume(self, key: str) -> float:
        """Take a token. Seconds until there is one; 0 if it was taken."""
        with self._lock:
            bucket = self._refilled(key)
            if bucket.tokens < 1:
                return (1 - bucket.tokens) / self._per_second
            bucket.tokens -= 1
            return 0

    def is_empty(self, key: str) -> bool:
        """Whether a token would have to be waited for."""
        with self._lock:
            return key in self._buckets and self._refilled(key).tokens < 1

    def _refilled(self, key: str) -> _Bucket:
        now = self._stopwatch()
        bucket = self._buckets.setdefault(key, _Bucket(self._most, now))
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
        bucket.tokens = min(self._most, bucket.tokens + (now - bucket.at) * self._per_second)
        bucket.at = now
        return bucket


class RateLimit:
    """Requests a second of each caller; 0: no limit. Remembers the callers that were seen last. Thread-safe."""

    def __init__(self, per_second: float, stopwatch: Stopwatch, what: str = "requests") -> None:
        """`what` is limited, for the message."""
        self._what = what
        self._per_second = per_second
        self._buckets = TokenBuckets(per_second, per_second * BURST_S, _CALLERS, stopwatch)

    def check(self, name: str) -> None:
        """Count a request. Raises TooManyRequests."""
        if not self._per_second:
            return
        wait_s = self._buckets.consume(name)
        if wait_s > 0:
            raise TooManyRequests(
                f"{name} sends more than {self._per_second:g} {self._what} a second, the limit of this server. "
                f"Try again in {math.ceil(wait_s)} s.",
                math.ceil(wait_s),
            )


class StreamLimit:
    """Open event streams of each caller: live pages and followed logs; 0: no limit. For one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """The number of open streams of all callers."""
        return self._open.total()

    @contextmanager
    def slot(self, name: str) -> Iterator[None]:
        """A stream, open until the block ends. Raises TooManyRequests."""
        if self._most and self._open[name] >= self._most:
            raise TooManyRequests(
                f"{name} has {self._most} live pages and followed logs open, the limit of this server. "
                "Close some of them; this one can be opened then.",
                _STREAM_RETRY_S,
            )
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """The limits of people. Agents have none. `storage` is the rate of calls of the storage, which do not count for
    `rate`: a training reads thousands of small ranges."""

    rate: RateLimit
    storage: RateLimit
    streams: StreamLimit
