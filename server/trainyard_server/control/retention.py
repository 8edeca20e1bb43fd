"""Retention in the background: surveys the jobs page by page, decides, and removes a few at a time. Also removes old
rows of the audit.

Every step does a bounded amount of work, so that no tick waits for it. What a killed process did not finish is found
by the next survey.
"""

import logging
from collections import deque
from contextlib import ExitStack
from datetime import timedelta

from trainyard_protocol.fields import sized
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.control.removal import remove_job, remove_log
from trainyard_server.control.retention_survey import Survey
from trainyard_server.domain.retention import RetentionPolicy, removals
from trainyard_server.storage.agent_liveness import Stopwatch
from trainyard_server.storage.db.tables import audit
from trainyard_server.storage.failures import FailureLog
from trainyard_server.storage.files import LockTimeout

RETENTION = "retention"
"""The one who deletes, in place of a person."""

_PAGE = 500  # jobs that one step looks at, or rows of the audit that it removes
_BATCH = 20  # jobs or logs that one step removes
_PAUSE_S = 60.0  # between two surveys

logger = logging.getLogger(__name__)


class Retention:
    """Call `step` after each tick, in the process that ticks."""

    def __init__(self, backend: Backend, controller: Controller, stopwatch: Stopwatch) -> None:
        self._backend = backend
        self._controller = controller
        self._policy = backend.retention
        self._stopwatch = stopwatch
        self._survey = Survey()
        self._jobs: deque[int] = deque()  # to remove
        self._logs: deque[tuple[int, str]] = deque()
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
            if not (self._jobs or self._logs):
                is_surveyed = not self._survey.look_on(self._backend, _PAGE, measures=policy.measures)
                if is_surveyed:
                    self._decide(policy)
            self._remove()
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            self._failures.record("Old jobs and logs cannot be removed", error)
            self._begin_anew()
        if self._survey.key or self._jobs or self._logs:
            return True
        self._next_at = self._stopwatch() + _PAUSE_S
        return False

    def _begin_anew(self) -> None:
        self._survey = Survey()
        self._jobs.clear()
        self._logs.clear()

    def _decide(self, policy: RetentionPolicy) -> None:
        survey, self._survey = self._survey, Survey()
        result = removals(survey.ended.values(), survey.log_bytes, self._backend.clock(), policy)
        self._jobs.extend(result.jobs)
        limit = sized(policy.keep_log_bytes or 0)
        reason = f"The log was removed: the logs of all jobs together may have {limit}."
        for key in result.project_logs:
            project = survey.ended[key].project
            limit = sized(policy.of(project).keep_log_bytes or 0)
            self._logs.append((key, f"The log was removed: the logs of the project {project} may have {limit}."))
        self._logs.extend((key, reason) for key in result.logs)

    def _remove(self) -> None:
        with ExitStack() as stack:
            try:
                stack.enter_context(self._backend.removal_lock.removing(wait_s=0))
            except LockTimeout:  # a backup begins; ticks do not wait for it
                return
            for _ in range(_BATCH):
                if self._jobs:
                    remove_job(self._backend, self._jobs.popleft(), RETENTION)
                elif self._logs:
                    key, reason = self._logs.popleft()
                    for written in remove_log(self._backend, key, reason):
                        # The service's lines anew, the reason among them.
                        self._controller.write_log(written)
