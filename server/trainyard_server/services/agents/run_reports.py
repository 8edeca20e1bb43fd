"""Reports of runs by their agents: what each changes in the database."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from trainyard_protocol.lines.progress import MAX_NAME
from trainyard_protocol.wire.sync import MAX_OTHERS, MAX_REPORTED, RunReport, SyncRequest, TrialMeasurement
from trainyard_server.control.snapshots import run_snapshot
from trainyard_server.domain.lifecycle import decisions, stalls
from trainyard_server.domain.lifecycle.messages import of_part, waiting
from trainyard_server.domain.metrics.summary import CurveSummary
from trainyard_server.domain.reports import related
from trainyard_server.domain.snapshots import RunSnapshot
from trainyard_server.domain.tuning.measurements import merged
from trainyard_server.storage.db.base.models import ReplicaRow, RunRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import STALLED, Event, Writer
from trainyard_server.storage.db.tables import studies


@dataclass(slots=True)
class Changed:
    """Keys of jobs that reports have moved, of jobs with new measurements, and the agents of the other parts of a run,
    which wait for this one."""

    moved: set[int] = field(default_factory=set)
    measured: set[int] = field(default_factory=set)
    partners: set[str] = field(default_factory=set)


class _Change(Exception):
    """A report changes something."""


class _Probe:
    """A writer that only reads: whatever it is to write is a change."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        if not hasattr(Reader, name):
            raise _Change
        return getattr(self._reader, name)


def are_known(
    reader: Reader, mine: Mapping[str, tuple[RunRow, list[ReplicaRow]]], request: SyncRequest, now: datetime
) -> bool:
    """Whether the reports of these runs change nothing."""
    probe = cast("Writer", _Probe(reader))
    try:
        for report in request.runs:
            if report.measurements or report.other_metrics:
                return False
            if report.run_id in mine:
                record(probe, *mine[report.run_id], report, request, now, Changed())
    except _Change:
        return False
    return True


def record(
    writer: Writer,
    run: RunRow,
    gang: list[ReplicaRow],
    report: RunReport,
    sender: SyncRequest,
    now: datetime,
    changed: Changed,
) -> None:
    """Record the report of a run: its runtime, its preparation, its replicas, its stalls, its measurements."""
    agent, snapshot = sender.agent.name, run_snapshot(run, gang)
    of_run = report if run.agents == 1 else of_part(related(report, sender.clock), agent)
    replicas = decisions.observe(snapshot, of_run, now)
    if run.agents > 1 and (replicas or run.ready != (run.ready or report.ready)):  # the other parts wait for that
        changed.partners |= {part.agent_id for part in writer.parts(run)}
    moves = _record_runtime(writer, run, report, now) | _record_preparation(writer, run, report, agent, now)
    for change in replicas:
        writer.change_replica(run, change, now)
    if moves | bool(replicas) | _note_stalls(writer, run, snapshot, report, now):
        changed.moved.add(run.job_key)
    if report.measurements and _record_measurements(writer, run.job_key, report):
        changed.measured.add(run.job_key)
    if report.other_metrics and not report.measurements:
        _record_others(writer, run.job_key, report.other_metrics)


def _record_runtime(writer: Writer, run: RunRow, report: RunReport, now: datetime) -> bool:
    """Record where the run's replicas run, and with which versions. Whether anything changed."""
    is_new = report.runtime is not None and run.runtime != report.runtime
    if report.runtime is not None and is_new:
        writer.record_runtime(run, report.runtime, report.runtime_reason, now)
    if report.resolved is None or run.has_resolved:
        return is_new
    writer.record_resolved(run, report.resolved.bounded(), now)
    return True


def _record_preparation(writer: Writer, run: RunRow, report: RunReport, agent: str, now: datetime) -> bool:
    """Record what the run waits for until it starts. Whether anything changed."""
    activity = report.activity or waiting(report.replicas)
    ready = run.ready or report.ready  # one that has started says no more that it is
    if run.acknowledged and (run.activity, run.ready) == (activity, ready):
        return False
    writer.record_activity(run, activity, ready, now, _preparation_events(run, report, activity, agent))
    return True


def _note_stalls(writer: Writer, run: RunRow, snapshot: RunSnapshot, report: RunReport, now: datetime) -> bool:
    """Record the stalls of the report. Whether anything changed."""
    changes, after = decisions.stall_changes(snapshot, report)
    if changes and run.agents > 1:  # what the other parts do counts, too
        snapshot = run_snapshot(run, writer.gang(run))
        _, after = decisions.stall_changes(snapshot, report)
    for task, stall, stacks in changes:
        writer.record_stall(run, task, stall, stacks)
    before, now_stalled = stalls.diagnose(snapshot.members), stalls.diagnose(after.members)
    if now_stalled is not None and before is None:
        writer.add_event(run.job_key, Event(STALLED, now_stalled.message, run.number, now_stalled.task), now)
    if now_stalled is None and before is not None:
        message = f"{before.task} moves on." if len(snapshot.replicas) == 1 else "The replicas move on."
        writer.add_event(run.job_key, Event("moves-on", message, run.number, before.task), now)
    return bool(changes)


def _record_measurements(writer: Writer, job_key: int, report: RunReport) -> bool:
    """Store the measurements of a trial. Whether any is new."""
    trial_and_stored = studies.stored_reports(writer, job_key)
    last = report.measurements[-MAX_REPORTED:]
    reported = [(point.step, point.value) for point in last if math.isfinite(point.value)]
    if trial_and_stored is None or not reported:
        return False
    trial, stored = trial_and_stored
    values, newest = merged(stored, reported), merged((), reported)[-1]
    final = studies.final_of(writer, trial, values, newest)
    if trial.from_file and (trial.step, trial.value) == final and values == stored:
        return False
    if studies.metric_of(writer, trial.study_key):
        return False  # the study took another metric before this was reported
    studies.record_measurements(writer, trial, values, newest)
    return True


def _record_others(writer: Writer, job_key: int, metrics: Mapping[str, TrialMeasurement]) -> None:
    """Store the metrics in the file of a trial that has none of the study's name."""
    trial_and_stored = studies.stored_reports(writer, job_key)
    values = {
        name: (measurement.step, measurement.value)
        for name, measurement in list(metrics.items())[:MAX_OTHERS]
        if 0 < len(name) <= MAX_NAME and name.isprintable() and math.isfinite(measurement.value)
    }
    if trial_and_stored is not None and values:
        studies.record_others(writer, trial_and_stored[0], CurveSummary(further=values).json())


def _preparation_events(run: RunRow, report: RunReport, activity: str, agent: str) -> list[Event]:
    """Events of the preparation of a run. What it waits for in its engine is one as it begins: it changes often."""
    events = []
    if not run.acknowledged and run.part_of is None:
        events.append(Event("acknowledged", "Waiting for training program to start.", run.number))
    if activity and activity != run.activity and (report.activity or not run.activity):
        on = f" (agent {agent})" if run.agents > 1 else ""
        events.append(Event("preparing", f"{activity[0].upper()}{activity[1:]}{on}.", run.number))
    return events
