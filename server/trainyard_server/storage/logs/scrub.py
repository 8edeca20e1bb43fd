"""Reads all logs, a little at a time, so that what the disk has damaged is found while somebody may still have it."""

from collections.abc import Iterator

from trainyard_server.storage.logs.store import LogStore

_LINES = 2000  # in one step


class Scrub:
    """One round over all logs. What it finds is among the store's `problems`, and is asked for again."""

    def __init__(self, logs: LogStore) -> None:
        self._logs = logs
        self._steps = self._round()

    def step(self) -> bool:
        """Looks at a little more; False once the round is over."""
        return next(self._steps, False)

    def _round(self) -> Iterator[bool]:
        for project, job_id in self._logs.jobs():
            after, more = 0, True
            while more:
                batch = self._logs.read(project, job_id, after, max_lines=_LINES)
                after, more = batch.cursor, batch.more
                yield True
