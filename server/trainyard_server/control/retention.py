"""Retention in the background: surveys the jobs page by page, decides, and removes a few at a time. Also removes old
rows of the audit.

Every step does a bounded amount of work, so that no tick waits for it. What a killed process did not finish is found
by the next survey.
"""

import logging
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import timedelta

from trainyard_protocol.fields import sized
from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.control.removal import remove_job, remove_log
from trainyard_server.domain.retention import EndedJob, removals
from trainyard_server.storage.agent_liveness import Stopwatch
from trainyard_server.storage.db.tables import audit
from trainyard_server.storage.failures import FailureLog

RETENTION = "retention"
"""The one who deletes, in place of a person."""

_PAGE = 500  # jobs that one step looks at, or rows of the audit that it removes
_BATCH = 20  # jobs or logs that one step removes
_PAUSE_S = 60.0  # between two surveys

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Survey:
    """The jobs seen so far: up to `key`, those that have ended, by key, and the bytes of all logs. A study is kept and
    removed with its trials, whose keys are above its own."""

    key: int = 0
    ended: dict[int, EndedJob] = field(default_factory=dict)
    log_bytes: int = 0


class Retention:
    """Call `step` after each tick, in the process that ticks."""

    def __init__(self, backend: Backend, controller: Controller, stopwatch: Stopwatch) -> None:
        self._backend = backend
        self._controller = controller
        self._policy = backend.retention
        self._stopwatch = stopwatch
        self._survey = _Survey()
        self._jobs: deque[int] = deque()  # to remove
        self._logs: deque[int] = deque()
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
        if self._policy.keeps_everything or self._stopwatch() < self._next_at:
            return False
        try:
            if not (self._jobs or self._logs) and not self._look_on():
                self._decide()
            self._remove()
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            self._failures.record("Old jobs and logs cannot be removed", error)
            self._survey = _Survey()
            self._jobs.clear()
            self._logs.clear()
        if self._survey.key or self._jobs or self._logs:
            return True
        self._next_at = self._stopwatch() + _PAUSE_S
        return False

    def _look_on(self) -> bool:
        """Look at the next page of jobs. False after the last one."""
        survey, measures = self._survey, self._policy.keep_log_bytes is not None
        with self._backend.store.read() as reader:
            page = reader.jobs_above(survey.key, _PAGE)
            orphaned = reader.orphaned_jobs()
        for job in page:
            survey.key = job.key
            size = self._backend.logs.size(job.project, job.job_id) if measures else 0
            survey.log_bytes += size
            stored = 0 if job.log_removed_at else size
            study = survey.ended.get(job.study_key) if job.study_key is not None else None
            if study is not None:
                survey.ended[study.key] = replace(study, log_bytes=study.log_bytes + stored)
                if job.key in orphaned:
                    del survey.ended[study.key]
            elif job.study_key is not None:
                continue  # of a study that goes on
            elif job.state in FINAL_JOB_STATES and job.ended_at is not None and job.key not in orphaned:
                survey.ended[job.key] = EndedJob(job.key, job.ended_at, stored)
        return len(page) == _PAGE

    def _decide(self) -> None:
        survey, self._survey = self._survey, _Survey()
        result = removals(survey.ended.values(), survey.log_bytes, self._backend.clock(), self._policy)
        self._jobs.extend(result.jobs)
        self._logs.extend(result.logs)

    def _remove(self) -> None:
        for _ in range(_BATCH):
            if self._jobs:
                remove_job(self._backend, self._jobs.popleft(), RETENTION)
            elif self._logs:
                limit = sized(self._policy.keep_log_bytes or 0)
                reason = f"The log was removed: the logs of all jobs together may have {limit}."
                for key in remove_log(self._backend, self._logs.popleft(), reason):
                    self._controller.write_log(key)  # the service's lines anew, the reason among them
