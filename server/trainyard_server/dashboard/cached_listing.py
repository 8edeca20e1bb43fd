"""Listing of a directory for an open page, so that a bucket is not listed at each step of the job."""

from collections.abc import Callable

from trainyard_protocol.answers.files import FileListing
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.context import Clock

_CACHED_S = 10.0


class CachedListing:
    """Listing of a directory, read again after a while and when the job's state changes."""

    def __init__(self, read: Callable[[], FileListing], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._result: tuple[FileListing | None, TrainyardError | None] = (None, None)
        self._state: JobState | None = None
        self._read_at = self._clock()

    def __call__(self, state: JobState) -> tuple[FileListing | None, TrainyardError | None]:
        age_s = (self._clock() - self._read_at).total_seconds()
        is_final = state in FINAL_JOB_STATES
        if state is not self._state or (not is_final and not 0 <= age_s < _CACHED_S):
            try:
                self._result = (self._read(), None)
            except TrainyardError as error:
                self._result = (None, error)
            self._state, self._read_at = state, self._clock()
        return self._result
