"""Study controller: applies the decisions about studies, one transaction for each.

As in `controller`, every method may be repeated at any time and by several threads. A suggestion may take a while, so
it is computed outside the transaction; it depends on nothing but the study, so two processes create the same trial, and
the second finds it created.
"""

import logging
from datetime import datetime
from typing import Any

from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.context import Backend
from trainyard_server.control.optuna_search import StudySuggester
from trainyard_server.domain.tuning import study as domain
from trainyard_server.domain.tuning.measurements import merged, of_curves
from trainyard_server.domain.tuning.study import (
    CreateTrial,
    Decision,
    FailStudy,
    LogTrial,
    MoveStudy,
    StopTrials,
    StudySnapshot,
)
from trainyard_server.storage.db import studies
from trainyard_server.storage.db.repository import Writer
from trainyard_server.storage.events.notifier import QUEUE_TOPIC, job_topic

logger = logging.getLogger(__name__)


class StudyController:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._suggester = StudySuggester()

    def advance(self, key: int) -> tuple[bool, list[int]]:
        """Apply every decision that the study is ready for. Whether there was any, and the keys of the jobs of trials
        that were created or are to be stopped."""
        moved, touched = self._read_curves(key), []
        while (done := self._step(key)) is not None:
            moved = True
            touched += done
        return moved, touched

    def _read_curves(self, key: int) -> bool:
        """Take over the metric from the curves of trials whose programs write no metric file. Whether there was a new
        value."""
        with self._backend.store.read() as reader:
            study = studies.snapshot(reader, key)
            if study is None or study.state in FINAL_JOB_STATES:
                return False
            found = []
            for trial, summaries in studies.unreported(reader, key):
                stored = tuple(studies.measurements_of(trial))
                values = merged(stored, of_curves(summaries, study.spec.hyperparameter_metric_tag))
                if values != stored:
                    found.append((trial, values))
        if not found:
            return False
        with self._backend.store.write() as writer:
            for trial, values in found:
                current = studies.stored_measurements(writer, trial.job_key)
                if current is not None and not current[0].from_file:
                    studies.record_measurements(writer, current[0], values, from_file=False)
        return True

    def _step(self, key: int) -> list[int] | None:
        """Apply the next decision, and return the keys of the trials' jobs that it concerns. None if there is none."""
        with self._backend.store.read() as reader:
            study = studies.snapshot(reader, key)
        decision = domain.step(study) if study is not None else None
        if study is None or decision is None:
            return None
        parameters = None
        if isinstance(decision, CreateTrial):
            past = domain.past_trials(study)
            parameters = self._suggester.suggest(study.spec, study.seed, past, decision.number)
        now = self._backend.clock()
        with self._backend.store.write() as writer:
            current = studies.snapshot(writer, key)
            if current is None or current.identity != study.identity:
                return []  # it has changed since it was read: decide again
            if isinstance(decision, CreateTrial):
                if parameters is None:
                    studies.mark_exhausted(writer, key)
                    return []
                row = writer.job_by_key(key)
                described = domain.shown(parameters)
                job = studies.add_trial(writer, row, decision.number, parameters, now, described)
                touched = [job.key]
            else:
                touched = _apply(writer, current, decision, now)
        self._backend.notifier.publish(job_topic(key), QUEUE_TOPIC)
        return touched


def _apply(writer: Writer, study: StudySnapshot, decision: Decision, now: datetime) -> list[int]:
    match decision:
        case MoveStudy(state, message, error):
            job = writer.job_by_key(study.key)
            values: dict[str, Any] = {}
            if state is JobState.RUNNING:
                values = {"started_at": job.started_at or now}
            elif state in FINAL_JOB_STATES:
                values = {"ended_at": now, "error_message": error}
            writer.move_job(job, state, now, message, **values)
        case LogTrial(number, phase, message, lacks_metric):
            key = next(trial.key for trial in study.trials if trial.number == number)
            names = studies.reported_names(writer, key) if lacks_metric else []
            message = f"{message[:-1]}. It reported {', '.join(names)}." if names else message
            studies.log_trial(writer, study.key, number, phase, message, now)
        case FailStudy(message):
            studies.mark_failing(writer, study.key, message, now)
        case StopTrials(numbers, message, early):
            keys = {trial.number: trial.key for trial in study.trials}
            for number in numbers:
                if early:
                    studies.mark_stopped_early(writer, study.key, number)
                writer.move_job(
                    writer.job_by_key(keys[number]),
                    JobState.CANCELLING,
                    now,
                    message,
                    stop_message=message,
                    waiting="",
                    waiting_kind="",
                    position=0,
                )
            return [keys[number] for number in numbers]
        case CreateTrial():
            raise AssertionError("a trial is created with its parameters")
    return []
