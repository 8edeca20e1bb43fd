"""Wake-ups: whoever waits for news of a topic sleeps until somebody publishes it, in this process or, where there
is a `bus`, in another.

Publishers are threads or coroutines; waiters are coroutines. Nothing is remembered for a topic that nobody
waits for, so a waiter subscribes first, then looks at the state, then waits:

    with notifier.subscribe("job:7") as news:
        while not done():
            await news.wait(timeout)
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Notifier:
    """A publisher of topics. Safe to use from any thread. `relay` passes on to other processes what is published
    here; it must not block."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # close() may come from a signal handler
        self._subscriptions: defaultdict[str, set[Subscription]] = defaultdict(set)
        self._closed = False
        self.relay: Callable[..., None] = _nobody_else

    def publish(self, *topics: str) -> None:
        """Wakes everyone who is subscribed to one of the topics."""
        if topics:
            self.deliver(*topics)
            self.relay(*topics)

    def deliver(self, *topics: str) -> None:
        """Wakes those in this process."""
        with self._lock:
            for topic in topics:
                for subscription in self._subscriptions.get(topic, ()):
                    subscription._wake(topic)
                if topic.startswith(_JOB):
                    for subscription in self._subscriptions.get(JOBS_TOPIC, ()):
                        subscription._wake(JOBS_TOPIC)

    def wake_all(self) -> None:
        """Wakes everyone in this process for all that they are subscribed to: something may have been missed."""
        with self._lock:
            topics = tuple(self._subscriptions)
        self.deliver(*topics)

    def subscribe(self, *topics: str) -> "Subscription":
        """To be called on the event loop that will wait."""
        return Subscription(self, topics)

    def close(self) -> None:
        """Wakes everyone, for good: the server is going down and nothing waits any more."""
        with self._lock:
            self._closed = True
            for subscriptions in self._subscriptions.values():
                for subscription in subscriptions:
                    subscription._wake("")

    @property
    def closed(self) -> bool:
        return self._closed


def _nobody_else(*topics: str) -> None:
    """There is no other process."""


class Subscription:
    """One waiter. News that arrives while it is busy is kept until it waits next."""

    def __init__(self, notifier: Notifier, topics: tuple[str, ...]) -> None:
        self._notifier = notifier
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._news: set[str] = set()

    def __enter__(self) -> Self:
        with self._notifier._lock:
            for topic in self._topics:
                self._notifier._subscriptions[topic].add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._notifier._lock:
            for topic in self._topics:
                subscriptions = self._notifier._subscriptions[topic]
                subscriptions.discard(self)
                if not subscriptions:
                    del self._notifier._subscriptions[topic]

    async def wait(self, timeout_s: float) -> frozenset[str]:
        """The topics with news since the last call; empty when the time is over or all is closing."""
        if not self._notifier.closed:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._event.wait()
            except TimeoutError:
                pass
        with self._notifier._lock:
            self._event.clear()
            news, self._news = frozenset(self._news - {""}), set()
        return news

    def _wake(self, topic: str) -> None:
        self._news.add(topic)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)


_JOB = "job:"

JOBS_TOPIC = "jobs"
"""News: a state of any job changed; whoever publishes the topic of a job publishes this."""


def job_topic(key: int) -> str:
    """News: a state of the job, of a run or of a replica changed."""
    return f"{_JOB}{key}"


PROGRESS_TOPIC = "progress"
"""News: what replicas of some jobs have reported of themselves has been written."""


def log_topic(key: int) -> str:
    """News: the job has more log lines."""
    return f"log:{key}"


def usage_topic(key: int) -> str:
    """News: it was measured what the job's replicas use."""
    return f"usage:{key}"


def agent_topic(agent_id: str) -> str:
    """News: the agent should have other runs, or a newer sync of it has arrived."""
    return f"agent:{agent_id}"


def session_topic(nonce: str) -> str:
    """News: the session was ended."""
    return f"session:{nonce}"


USAGE_TOPIC = "usage"
"""News: it was measured what the replicas of some job use."""

AGENTS_TOPIC = "agents"
"""News: an agent came, came back, or is not as it was."""

QUEUE_TOPIC = "queue"
"""News: there is something to schedule."""
