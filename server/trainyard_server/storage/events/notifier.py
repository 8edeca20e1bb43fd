"""Notifications: coroutines wait until a topic is published, in this process or, through `relay`, in another.

Publishers are threads or coroutines. A topic without subscribers is dropped, so subscribe first, then read the state,
then wait:

    with notifier.subscribe("job:7") as events:
        while not done():
            await events.wait(timeout)
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self


class Notifier:
    """A publisher of topics. Thread-safe. `relay` sends published topics to other processes; it must not block.

    Who subscribes to JOBS_TOPIC, PROGRESS_TOPIC or WAITING_TOPIC receives the topics of all jobs.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # close() may come from a signal handler
        self._subscriptions: defaultdict[str, set[Subscription]] = defaultdict(set)
        self._listeners: list[Callable[[Sequence[str]], None]] = []
        self._closed = False
        self.relay: Callable[..., None] = _no_relay

    def publish(self, *topics: str) -> None:
        """Wake the subscribers of the topics, in all processes."""
        if topics:
            self.deliver(*topics)
            self.relay(*topics)

    def deliver(self, *topics: str) -> None:
        """Wake the subscribers in this process."""
        for listener in self._listeners:
            listener(topics)
        with self._lock:
            for topic in topics:
                for name in {topic, _FAMILIES.get(topic.partition(":")[0], topic)}:
                    for subscription in self._subscriptions.get(name, ()):
                        subscription._wake(topic)

    def wake_all(self) -> None:
        """Wake all subscribers in this process, since notifications may have been missed."""
        with self._lock:
            topics = {*self._subscriptions, *_FAMILIES.values()}
        self.deliver(*topics)

    def listen(self, listener: Callable[[Sequence[str]], None]) -> None:
        """Call a function with all topics from now on, before their subscribers are woken. It must not block."""
        self._listeners.append(listener)

    def subscribe(self, *topics: str) -> "Subscription":
        """Call it on the event loop that waits."""
        return Subscription(self, topics)

    def close(self) -> None:
        """Wake all subscribers for the shutdown; no later wait blocks."""
        with self._lock:
            self._closed = True
            for subscriptions in self._subscriptions.values():
                for subscription in subscriptions:
                    subscription._wake("")

    @property
    def closed(self) -> bool:
        return self._closed


def _no_relay(*topics: str) -> None:
    """The default relay: there is no other process."""


class Subscription:
    """A subscription of one coroutine. Topics that are published while it is busy are stored until its next wait."""

    def __init__(self, notifier: Notifier, topics: tuple[str, ...]) -> None:
        self._notifier = notifier
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._pending: set[str] = set()

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
        """The topics that were published since the last call; empty on a timeout and at shutdown."""
        if not self._notifier.closed:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._event.wait()
            except TimeoutError:
                pass
        with self._notifier._lock:
            self._event.clear()
            topics, self._pending = frozenset(self._pending - {""}), set()
        return topics

    def _wake(self, topic: str) -> None:
        is_woken = bool(self._pending)  # since its last wait
        self._pending.add(topic)
        if not is_woken and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)


JOBS_TOPIC = "jobs"
"""The states of some jobs changed."""

PROGRESS_TOPIC = "progress"
"""The progress of some jobs was written."""

WAITING_TOPIC = "waiting"
"""The scheduler wrote why some jobs wait."""

_FAMILIES = {"job": JOBS_TOPIC, "progress": PROGRESS_TOPIC, "waiting": WAITING_TOPIC}
_MOST_KEYS = 200  # topics of jobs at a time


def job_topic(key: int) -> str:
    """The state of the job, of a run or of a replica changed."""
    return f"job:{key}"


def progress_topic(key: int) -> str:
    """The progress of the job's replicas was written."""
    return f"progress:{key}"


def waiting_topics(keys: Collection[int]) -> Sequence[str]:
    """The scheduler wrote why these jobs wait. Of very many jobs it is one topic."""
    return [f"waiting:{key}" for key in keys] if len(keys) <= _MOST_KEYS else [WAITING_TOPIC]


@dataclass(frozen=True, slots=True)
class JobChanges:
    """The changes of jobs among published topics. `any_job`: it is not known of which jobs."""

    states: frozenset[int]
    progress: frozenset[int]
    waiting: frozenset[int]
    any_job: bool

    @classmethod
    def among(cls, topics: Collection[str]) -> "JobChanges":
        keys: dict[str, set[int]] = {family: set() for family in _FAMILIES}
        for topic in topics:
            family, _, key = topic.partition(":")
            if key and family in keys:
                keys[family].add(int(key))
        any_job = any(topic in _FAMILIES.values() for topic in topics)
        return cls(frozenset(keys["job"]), frozenset(keys["progress"]), frozenset(keys["waiting"]), any_job)

    @property
    def keys(self) -> frozenset[int]:
        return self.states | self.progress | self.waiting


NOTIFICATIONS_TOPIC = "notifications"
"""Attempts to deliver notifications that have ended."""


def log_topic(key: int) -> str:
    """The job has more log lines."""
    return f"log:{key}"


def usage_topic(key: int) -> str:
    """The job's replicas have new usage samples."""
    return f"usage:{key}"


def agent_topic(agent_id: str) -> str:
    """The agent has other orders, or a newer sync of it has arrived."""
    return f"agent:{agent_id}"


def session_topic(nonce: str) -> str:
    """The session was ended."""
    return f"session:{nonce}"


def person_topic(name: str) -> str:
    """A token of the person was revoked, or a role of it changed."""
    return f"person:{name}"


USAGE_TOPIC = "usage"
"""The replicas of a job have new usage samples."""

AGENTS_TOPIC = "agents"
"""An agent connected, came back or changed."""

QUEUE_TOPIC = "queue"
"""The queue changed: schedule."""
