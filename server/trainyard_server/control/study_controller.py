"""Study controller: applies the decisions about studies, one transaction for each.

As in `controller`, every method may be repeated at any time and by several threads. A suggestion may take a while, so
it is computed outside the transaction; it depends on nothing but the study, so two processes create the same trial, and
the second finds it created.
"""

import logging
from datetime import datetime
from itertools import chain
from typing import Any

from trainyard_protocol.fields import did_you_mean
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.context import Backend
from trainyard_server.control.optuna_search import StudySuggester
from trainyard_server.domain.tuning import study as domain
from trainyard_server.domain.tuning.measurements import chosen_metric, listed, merged, names_in, of_curves
from trainyard_server.domain.tuning.study import (
    CreateTrial,
    Decision,
    FailStudy,
    LogTrial,
    MoveStudy,
    StopTrials,
    StudySnapshot,
)
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer
from trainyard_server.storage.db.tables import studies
from trainyard_server.storage.events.notifier import QUEUE_TOPIC, job_topic

_EXAMPLES = 10
"""Trials of which a message lists the metrics."""

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
        """Take over the metric from the curves of trials, beside what their metric files have. Whether there was a new
        value."""
        with self._backend.store.read() as reader:
            study = studies.snapshot(reader, key, trials=False)  # there may be thousands
            if study is None or study.state in FINAL_JOB_STATES:
                return False
            if study.chooses_metric:
                study = studies.snapshot(reader, key) or study
            taken = self._metric_to_choose(reader, study) if study.chooses_metric else ""
            tag = taken or study.tag
            new = []
            for trial, summaries in studies.with_curves(reader, key, ended=bool(taken)):
                stored = studies.reports_of(trial)
                curve = of_curves(summaries, tag)
                # What a program reports to its file counts before what it prints.
                values = merged(curve, stored) if trial.from_file else merged(stored, curve)
                if values != stored:
                    new.append((trial, values))
        if not (new or taken):
            return False
        with self._backend.store.write() as writer:
            if taken:
                if studies.metric_of(writer, key):
                    return True
                direction = "the largest" if domain.maximizes(study.spec, taken) else "the smallest"
                message = f"No metric was named: trials are ranked by {taken}, {direction} first."
                studies.choose_metric(writer, key, taken, message, self._backend.clock())
            for trial, values in new:
                current = studies.stored_reports(writer, trial.job_key)
                if current is not None and current[1] == studies.reports_of(trial):
                    studies.record_measurements(writer, current[0], values)
        return True

    @staticmethod
    def _metric_to_choose(reader: Reader, study: StudySnapshot) -> str:
        """The metric to choose, by the first trial that has ended well and reported one. A trial that runs may not have
        reported all of its metrics yet."""
        for trial in study.trials:
            if trial.state is JobState.SUCCEEDED:
                names = names_in(chain.from_iterable(studies.summaries(reader, [trial.key]).values()))
                if names:
                    return chosen_metric(names, study.spec.sent_goal)
        return ""

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
        case MoveStudy(state, message, error, lacks_metric):
            job = writer.job_by_key(study.key)
            if lacks_metric:
                text = _with_names(writer, study, error or message)
                message, error = (message, text) if error else (text, error)
            values: dict[str, Any] = {}
            if state is JobState.RUNNING:
                values = {"started_at": job.started_at or now}
            elif state in FINAL_JOB_STATES:
                values = {"ended_at": now, "error_message": error}
            writer.move_job(job, state, now, message, **values)
        case LogTrial(number, phase, message, lacks_metric):
            key = next(trial.key for trial in study.trials if trial.number == number)
            names = studies.reported_names(writer, [key]) if lacks_metric else []
            message = f"{message} It reported {listed(names)}." if names else message
            studies.log_trial(writer, study.key, number, phase, message, now)
        case FailStudy(message, lacks_metric):
            message = _with_names(writer, study, message) if lacks_metric else message
            studies.mark_failing(writer, study.key, message, now)
        case StopTrials(numbers, message, early):
            keys = {trial.number: trial.key for trial in study.trials}
            for number in numbers:
                if early:
                    studies.mark_stopped_early(writer, study.key, number)
                trial = writer.job_by_key(keys[number])
                writer.move_job(trial, JobState.CANCELLING, now, message, stop_message=message)
            return [keys[number] for number in numbers]
        case CreateTrial():
            raise AssertionError("a trial is created with its parameters")
    return []


def _with_names(writer: Writer, study: StudySnapshot, message: str) -> str:
    """A sentence about a metric that trials lack, with what they have reported and what can be done."""
    ended = [trial.key for trial in study.trials if trial.state is JobState.SUCCEEDED]
    names = studies.reported_names(writer, ended[:_EXAMPLES])
    if not names:
        return f"{message} They reported no metric at all: docs/how-to/metrics.md has what a program prints."
    rank = f"jobs trials {study.job_id} --metric NAME ranks them by one of these."
    meant = did_you_mean(study.tag, names)
    return " ".join(filter(None, (message, meant, f"They reported {listed(names)}: {rank}")))
