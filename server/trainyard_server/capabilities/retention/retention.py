"""Retention in the background: surveys the jobs page by page, decides, and removes a few at a time. Also removes old
rows of the audit.

Every step does a bounded amount of work, so that no tick waits for it. What a killed process did not finish is found
by the next survey.
"""

import logging
from collections import deque
from contextlib import ExitStack
from datetime import timedelta

from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_server.context import Backend
from trainyard_server.control.removal import RETENTION, remove_job
from trainyard_server.domain.retention import EndedJob, removals
from trainyard_server.storage.agent_liveness import Stopwatch
from trainyard_server.storage.db.tables import audit
from trainyard_server.storage.failures import FailureLog
from trainyard_server.storage.files import LockTimeout

_PAGE = 500  # jobs that one step looks at, or rows of the audit that it removes
_BATCH = 20  # jobs that one step removes
_PAUSE_S = 60.0  # between two surveys

logger = logging.getLogger(__name__)


class Retention:
    """Call `step` now and then, in one thread of one server."""

    def __init__(self, backend: Backend, stopwatch: Stopwatch) -> None:
        self._backend = backend
        self._policy = backend.retention
        self._stopwatch = stopwatch
        self._surveyed = 0  # the key of the last job that was looked at
        self._ended: dict[int, EndedJob] = {}  # by key
        self._jobs: deque[int] = deque()  # to remove
        self._next_at = self._next_audit_at = stopwatch()
        self._failures = FailureLog(logger)

    def step(self) -> bool:
        """Do the next bounded part. False if there is nothing to do for now. A failure is logged, and the work is found
        again by the next survey."""
        return any([self._step_audit(), self._step_jobs()])

    def _step_audit(self) -> bool:
        """Remove the next old rows of the audit."""
        keep_s = self._backend.settings.keep_audit_s
        if keep_s is None or self._stopwatch() < self._next_audit_at:
            return False
        removed = 0
        try:
            with self._backend.store.write() as writer:
                oldest = self._backend.clock() - timedelta(seconds=keep_s)
                removed = audit.remove_before(writer, oldest, _PAGE)
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            self._failures.record("Old rows of the audit cannot be removed", error)
        if removed < _PAGE:
            self._next_audit_at = self._stopwatch() + _PAUSE_S
        return removed == _PAGE

    def _step_jobs(self) -> bool:
        policy = self._backend.retention
        if policy != self._policy:  # a quota file was read: what was decided holds no more
            self._policy = policy
            self._begin_anew()
        if policy.keeps_everything or self._stopwatch() < self._next_at:
            return False
        try:
            if not self._jobs and not self._survey():
                self._jobs.extend(removals(self._ended.values(), self._backend.clock(), policy))
                self._surveyed = 0
                self._ended.clear()
            self._remove()
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            self._failures.record("Old jobs cannot be removed", error)
            self._begin_anew()
        if self._surveyed or self._jobs:
            return True
        self._next_at = self._stopwatch() + _PAUSE_S
        return False

    def _begin_anew(self) -> None:
        self._surveyed = 0
        self._ended.clear()
        self._jobs.clear()

    def _survey(self) -> bool:
        """Look at the next jobs. False after the last one. A study is kept and removed with its trials, whose keys are
        above its own."""
        with self._backend.store.read() as reader:
            page = reader.jobs_above(self._surveyed, _PAGE)
            orphaned = reader.orphaned_jobs()
        for job in page:
            self._surveyed = job.key
            if job.study_key is not None:
                if job.key in orphaned:
                    self._ended.pop(job.study_key, None)
            elif job.state in FINAL_JOB_STATES and job.ended_at is not None and job.key not in orphaned:
                self._ended[job.key] = EndedJob(job.key, job.ended_at, job.project)
        return len(page) == _PAGE

    def _remove(self) -> None:
        with ExitStack() as stack:
            try:
                stack.enter_context(self._backend.removal_lock.removing(wait_s=0))
            except LockTimeout:  # a backup begins; ticks do not wait for it
                return
            for _ in range(min(_BATCH, len(self._jobs))):
                try:
                    remove_job(self._backend, self._jobs.popleft(), RETENTION)
                except FailedPrecondition:  # it is still needed: the next survey finds it again
                    continue
