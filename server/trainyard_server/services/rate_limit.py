"""Slows down whoever guesses tokens at the sign-in page: so many wrong ones, then a pause.

It knows a limited number of clients, and of each a limited number of times. A token is as good as it is long: this only
keeps the log and the disk from being filled, and a token that somebody thought up from being found in an afternoon.
"""

import threading
from collections import OrderedDict, deque
from datetime import datetime, timedelta


class Guesses:
    """Safe to be used from several threads. `clients`: how many are remembered, those that were wrong last."""

    def __init__(self, most: int = 10, within: timedelta = timedelta(minutes=1), clients: int = 1000) -> None:
        self._most = most
        self._within = within
        self._clients = clients
        self._wrong: OrderedDict[str, deque[datetime]] = OrderedDict()
        self._lock = threading.Lock()

    def wait_s(self, client: str, now: datetime) -> float:
        """How many seconds the client has to wait before it may try again; 0: it may."""
        with self._lock:
            times = self._wrong.get(client)
            if times is None or len(times) < self._most:
                return 0
            return max(0.0, (times[0] + self._within - now).total_seconds())

    def wrong(self, client: str, now: datetime) -> None:
        """The client has shown a token that is none."""
        with self._lock:
            times = self._wrong.setdefault(client, deque(maxlen=self._most))
            times.append(now)
            self._wrong.move_to_end(client)
            while len(self._wrong) > self._clients:
                self._wrong.popitem(last=False)
