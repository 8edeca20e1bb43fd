"""Service's own lines in the logs of jobs: the n-th line is the n-th event with a message.

The missing lines are derived from the length of the log, so each line is written once, however often this is called.
"""

import logging
from collections.abc import Sequence

from trainyard_protocol.fields import rfc3339
from trainyard_protocol.states import JobState
from trainyard_protocol.wire.logs import LogLine
from trainyard_server.context import Backend
from trainyard_server.domain.lifecycle.messages import COMPLETED, JOB_COMPLETED
from trainyard_server.storage.db.queries.reader import ServiceLine
from trainyard_server.storage.events.notifier import log_topic
from trainyard_server.storage.failures import FailureLog, failure_reason
from trainyard_server.storage.logs.store import SERVICE

_AT_ONCE = 200
"""Most logs that one query, or one round, brings up to date."""

_ROUTINE = frozenset({"created", "validated", "acknowledged", "preparing"})
"""Kinds of events that a job's state repeats while they count."""

logger = logging.getLogger(__name__)


class ServiceLog:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._written: set[int] = set()  # jobs whose log this process has brought up to date
        self._waiting: set[int] = set()  # jobs whose log is to be written, or could not be
        self._failures = FailureLog(logger)

    def is_written(self, key: int) -> bool:
        return key in self._written

    def forget(self) -> None:
        """Let `catch_up` look at every job again."""
        self._written.clear()

    def catch_up(self, unfinished: set[int]) -> None:
        """Write lines that a killed process did not write, and those that wait; some in each round."""
        self._written &= unfinished
        self.write(*sorted(unfinished - self._written)[:_AT_ONCE])
        self.retry()

    def retry(self) -> None:
        self.write(*list(self._waiting)[:_AT_ONCE])

    def write_later(self, *keys: int) -> None:
        """Let the next rounds write the lines."""
        self._waiting.update(keys)

    def write(self, *keys: int) -> None:
        """Write the lines of these jobs; `retry` writes those that cannot be written now."""
        for at in range(0, len(keys), _AT_ONCE):
            self._write(keys[at : at + _AT_ONCE])

    def write_now(self, key: int) -> None:
        """Write the lines of a job. Raises what the database and the log raise."""
        with self._backend.store.live() as reader:
            names, events = reader.names([key]), reader.service_lines([key])
        if key in names:  # or it was deleted
            self._append(key, *names[key], events.get(key, ()))

    def _write(self, keys: Sequence[int]) -> None:
        try:
            with self._backend.store.live() as reader:
                names, events = reader.names(keys), reader.service_lines(keys)
        except Exception as error:  # noqa: BLE001 - raised again if it is a bug
            self._not_written(keys, error)
            return
        for key in keys:
            try:
                if key in names:
                    self._append(key, *names[key], events.get(key, ()))
            except Exception as error:  # noqa: BLE001 - raised again if it is a bug
                self._not_written([key], error)
            else:
                self._waiting.discard(key)
                self._written.add(key)

    def _append(self, key: int, project: str, job_id: str, events: Sequence[ServiceLine]) -> None:
        logs = self._backend.logs
        have = logs.count(project, job_id, SERVICE)
        lines = [
            LogLine(rfc3339(event.time), "stdout", event.message, routine=is_routine(event)) for event in events[have:]
        ]
        if lines and logs.append(project, job_id, SERVICE, have, lines).new:
            self._backend.notifier.publish(log_topic(key))

    def _not_written(self, keys: Sequence[int], error: Exception) -> None:
        if failure_reason(error) is None and not isinstance(error, OSError):
            raise error
        self._waiting.update(keys)
        self._failures.record("The service's lines of a job cannot be written", error)


def is_routine(event: ServiceLine) -> bool:
    """Whether the job's state or its end says the same, so that a live view may leave the line out. Pure."""
    if event.kind == "job":
        return event.after == JobState.PREPARING or event.message == JOB_COMPLETED
    if event.kind == "replica":
        return event.message.endswith(COMPLETED)
    return event.kind in _ROUTINE
