"""MLflow's tracking, on jobs: an experiment is a project, a run is a job. Programs log by the token of their run."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trainyard_protocol.errors import InvalidArgument, NotFound, Violation, quoted
from trainyard_protocol.job.parameters import MAX_PARAMETER_NAME
from trainyard_protocol.lines.progress import MAX_NAME
from trainyard_server.capabilities.tracking import points, store
from trainyard_server.capabilities.tracking.messages import (
    CreateRun,
    DatasetInput,
    KeyValue,
    LoggedMetric,
    LogInputs,
    ModelUse,
    UpdateRun,
)
from trainyard_server.capabilities.tracking.models.logged_models import add_model_metrics
from trainyard_server.capabilities.tracking.notes import MAX_PARAMETER, MAX_TAG, NotKept, note
from trainyard_server.capabilities.tracking.run_views import runs_json
from trainyard_server.capabilities.tracking.store import ValueKind
from trainyard_server.capabilities.tracking.targets import RunAccess, RunTarget
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.domain.metrics.sources import MetricSource
from trainyard_server.services.measurements.metrics import Metrics
from trainyard_server.storage.db.repository import Writer
from trainyard_server.storage.db.tables import job_values
from trainyard_server.storage.events.notifier import log_topic, progress_topic

_RUN_STATUSES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
_SHOWN_RUN = "run"
_RUN_NAME = "mlflow.runName"
_MODEL_HISTORY = "mlflow.log-model.history"
_DATASETS, _DATASET_LENGTH = 100, 65_535
_CONTEXT = "mlflow.data.context"
_LATEST_MS = 253_370_764_800_000  # the year 9999

Json = dict[str, Any]


class Tracking:
    def __init__(self, backend: Backend, access: RunAccess, controller: Controller, metrics: Metrics) -> None:
        self._backend = backend
        self._metrics = metrics
        self._access = access
        self._controller = controller
        settings = backend.settings
        self._limits = points.PointLimits(settings.logged_points_of_metric, settings.logged_points_of_job)

    def create_run(self, secret: str, request: CreateRun) -> Json:
        """Make a run: the first one of a program that has not opened the job's own is that, others are further runs. A
        job with too many logs to its own. Raises PermissionDenied."""
        now, not_kept = self._backend.clock(), set[NotKept]()
        tags = {tag.key: tag.value for tag in request.tags}
        if request.run_name:
            tags[_RUN_NAME] = request.run_name
        with self._backend.store.write() as writer:
            target = self._of_token(writer, secret)
            if not store.open_own(writer, target.job.key, target.run, now):
                row = store.add_run(writer, target.job.key, _prefix(tags.get(_RUN_NAME, "")), now)
                if row is None:
                    not_kept.add(NotKept.RUNS)
                else:
                    row.started_at = _time(request.start_time, now)
                    target = RunTarget(target.job, target.run, row)
            if NotKept.RUNS not in not_kept:
                not_kept |= _set_tags(writer, target, tags)
            answer, is_noted = self._answer(writer, target), self._note(writer, target, not_kept)
        self._follow(target, is_noted=is_noted)
        return answer

    def update_run(self, secret: str, request: UpdateRun) -> Json:
        """Set the status and the name of a run. The job's own follows its program: another status of it is ignored."""
        status, now = request.status, self._backend.clock()
        if status and status not in _RUN_STATUSES:
            allowed = ", ".join(_RUN_STATUSES)
            raise InvalidArgument(Violation("status", f"is one of {allowed}; this is {quoted(status)}."))
        with self._backend.store.write() as writer:
            target = self._active(writer, secret, request.wanted)
            if target.further is None:
                store.open_own(writer, target.job.key, target.run, now)
            elif status:
                store.set_status(target.further, status, _time(request.end_time, now))
                writer.session.flush()
            if request.run_name:
                _set_tags(writer, target, {_RUN_NAME: request.run_name})
            return self._answer(writer, target)

    def delete_run(self, secret: str, wanted: str, *, restore: bool = False) -> None:
        """Delete a further run, which may be restored. Raises PermissionDenied, InvalidArgument for the job's own."""
        with self._backend.store.write() as writer:
            target = self._of_token(writer, secret, wanted)
            if target.further is None:
                raise InvalidArgument(
                    f"The run {target.run_id} is the job {target.job.job_id}: MLflow does not delete it. People delete "
                    "a job once it has ended."
                )
            target.further.deleted_at = None if restore else self._backend.clock()
            writer.session.flush()

    def log(
        self,
        secret: str,
        wanted: str,
        metrics: Sequence[LoggedMetric] = (),
        params: Sequence[KeyValue] = (),
        tags: Sequence[KeyValue] = (),
        *,
        may_change: bool = False,
    ) -> None:
        """Record metrics, parameters and tags of the calling job, or of a further run of it. What there is no room for
        is left out, and the job's log says so. `may_change`: parameters may get other values. Raises PermissionDenied;
        InvalidArgument for a step that is out of range and for a parameter that has another value."""
        now = self._backend.clock()
        with self._backend.store.write() as writer:
            target = self._active(writer, secret, wanted)
            if target.further is None:
                store.open_own(writer, target.job.key, target.run, now)
            not_kept = _set_params(writer, target, {param.key: param.value for param in params}, may_change=may_change)
            not_kept |= _set_tags(writer, target, {tag.key: tag.value for tag in tags})
            if metrics:
                now_ms = int(now.timestamp() * 1000)
                settings = self._backend.settings
                room = shutil.disk_usage(settings.data_dir).free >= settings.disk_reserve
                not_kept |= points.add(writer, target, metrics, now_ms, self._limits, room=room)
                not_kept |= add_model_metrics(writer, target, metrics, now_ms)
            is_noted = self._note(writer, target, not_kept)
        self._follow(target, has_points=bool(metrics), is_noted=is_noted)

    def delete_tag(self, secret: str, wanted: str, key: str) -> None:
        """Raises PermissionDenied, NotFound for a tag that the program has not set."""
        with self._backend.store.write() as writer:
            target = self._active(writer, secret, wanted)
            if not store.delete_value(writer, target.job.key, target.number, ValueKind.TAG, key):
                raise NotFound(f"The run {target.run_id} has no tag {quoted(key)} of its program.")

    def log_inputs(self, secret: str, request: LogInputs) -> None:
        """Record data sets and models that a run reads. Raises PermissionDenied."""
        with self._backend.store.write() as writer:
            target = self._active(writer, secret, request.wanted)
            not_kept = _set_datasets(writer, target, request.datasets)
            not_kept |= _set(writer, target, ValueKind.MODEL_INPUT, {model.model_id: "" for model in request.models})
            is_noted = self._note(writer, target, not_kept)
        self._follow(target, is_noted=is_noted)

    def log_outputs(self, secret: str, wanted: str, models: Sequence[ModelUse]) -> None:
        """Record models that a run has written. Raises PermissionDenied."""
        with self._backend.store.write() as writer:
            target = self._active(writer, secret, wanted)
            steps = {model.model_id: str(model.step) for model in models}
            is_noted = self._note(writer, target, _set(writer, target, ValueKind.MODEL_OUTPUT, steps))
        self._follow(target, is_noted=is_noted)

    def log_model(self, secret: str, wanted: str, text: str) -> None:
        """Record a model of older clients in the tag of its run that has them all. Raises PermissionDenied."""
        try:
            added = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(Violation("model_json", "is no JSON.")) from error
        with self._backend.store.write() as writer:
            target = self._active(writer, secret, wanted)
            row = store.value(writer, target.job.key, target.number, ValueKind.TAG, _MODEL_HISTORY)
            history = json.dumps([*(json.loads(row.value) if row is not None else []), added])
            is_short = len(history) <= MAX_TAG
            not_kept = _set_tags(writer, target, {_MODEL_HISTORY: history}) if is_short else {NotKept.CUT}
            is_noted = self._note(writer, target, not_kept)
        self._follow(target, is_noted=is_noted)

    def note(self, secret: str, kind: NotKept, wanted: str = "") -> None:
        """Write a line of that kind into the log of the job that calls, if it has none. Raises PermissionDenied."""
        with self._backend.store.read() as reader:
            target = self._access.of_token(reader, secret, wanted)
            if store.value(reader, target.job.key, store.OWN, ValueKind.NOTE, kind.value) is not None:
                return
        with self._backend.store.write() as writer:
            target = self._of_token(writer, secret, wanted)
            is_noted = self._note(writer, target, {kind})
        self._follow(target, is_noted=is_noted)

    def run(self, caller: Caller, secret: str, wanted: str) -> Json:
        """A run with its newest metrics, its parameters and tags. Raises NotFound."""
        with self._backend.store.read() as reader:
            target = self._access.visible(reader, caller, wanted)
            own_key = self._access.own_key(reader, secret) if caller.is_run else None
            return runs_json(reader, self._access, [target], own_key)[0]

    def history(self, caller: Caller, wanted: str, metric: str, limit: int, page_token: str) -> Iterator[str]:
        """Parts of an answer with the points of a metric: logged ones, else those of its curve. Raises NotFound and
        InvalidArgument at once, OSError."""
        with self._backend.store.read() as reader:
            target = self._access.visible(reader, caller, wanted)
            name, key = target.prefix + metric, target.job.key
            summary = job_values.values_of(reader, [key], (), [name])[key].metrics.get(name)
        if summary is None or summary.source is MetricSource.LOGGED:
            return points.history(self._backend, target, metric, limit, page_token)
        curve = self._metrics.points(target.job.project, target.job.job_id, name)
        return points.printed_history(curve, metric, limit, page_token)

    def _of_token(self, writer: Writer, secret: str, wanted: str = "") -> RunTarget:
        """The run that is wanted, with the lock of its job's row."""
        target = self._access.of_token(writer, secret, wanted)
        store.lock(writer, target.job.key)
        return target

    def _active(self, writer: Writer, secret: str, wanted: str) -> RunTarget:
        target = self._of_token(writer, secret, wanted)
        if target.further is not None and target.further.deleted_at is not None:
            raise InvalidArgument(f"The run {target.run_id} is deleted: restore it first.")
        return target

    def _answer(self, writer: Writer, target: RunTarget) -> Json:
        return runs_json(writer, self._access, [target], target.job.key)[0]

    def _note(self, writer: Writer, target: RunTarget, not_kept: set[NotKept]) -> bool:
        now = self._backend.clock()
        added = [note(writer, target.job.key, target.run, kind, now) for kind in sorted(not_kept)]
        return any(added)

    def _follow(self, target: RunTarget, *, has_points: bool = False, is_noted: bool = False) -> None:
        if is_noted:
            self._controller.write_log_soon(target.job.key)
        if has_points:
            self._backend.notifier.publish(log_topic(target.job.key), progress_topic(target.job.key))


def _prefix(name: str) -> str:
    """The name of a further run in its job, before its metrics."""
    clean = "".join(letter for letter in name if letter.isprintable())[: MAX_NAME // 2].strip("/")
    return _SHOWN_RUN if clean in ("", ".", "..") else clean


def _time(ms: int, now: datetime) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC) if 0 < ms < _LATEST_MS else now


def _set(writer: Writer, target: RunTarget, kind: ValueKind, given: Mapping[str, str]) -> set[NotKept]:
    """Set values of a run, but those with names that cannot be stored."""
    named = {name: value for name, value in given.items() if 0 < len(name) <= store.MAX_KEY and name.isprintable()}
    left_out = store.set_values(writer, target.job.key, target.number, target.run, kind, named)
    not_kept = {NotKept.VALUES} if left_out else set[NotKept]()
    return not_kept | ({NotKept.NAMES} if len(named) < len(given) else set())


def _set_tags(writer: Writer, target: RunTarget, tags: Mapping[str, str]) -> set[NotKept]:
    cut = {name: value[:MAX_TAG] for name, value in tags.items()}
    return _set(writer, target, ValueKind.TAG, cut) | ({NotKept.CUT} if cut != dict(tags) else set())


def _set_params(writer: Writer, target: RunTarget, params: Mapping[str, str], *, may_change: bool) -> set[NotKept]:
    """Set parameters, also those that jobs are found by. A later run of the job may have other values. Raises
    InvalidArgument for another value."""
    if not params:
        return set()
    cut = {name: value[:MAX_PARAMETER] for name, value in params.items()}
    present = store.named_values(writer, target.job.key, target.number, ValueKind.PARAM, cut)
    for name, row in present.items():
        if row.value != cut[name] and row.run == target.run and not may_change:
            raise InvalidArgument(
                f"The parameter {quoted(name)} of the run {target.run_id} is {quoted(row.value)}: it cannot be changed "
                f"to {quoted(cut[name])}. Log it under another name, or as a tag."
            )
    not_kept = _set(writer, target, ValueKind.PARAM, cut) | ({NotKept.CUT} if cut != dict(params) else set())
    found_by = {
        f"{target.prefix}{name}"[:MAX_PARAMETER_NAME]: value for name, value in cut.items() if name.isprintable()
    }
    left_out = job_values.add_parameters(writer, target.job.key, found_by)
    return not_kept | ({NotKept.PARAMETERS} if left_out else set())


def _set_datasets(writer: Writer, target: RunTarget, inputs: Sequence[DatasetInput]) -> set[NotKept]:
    not_kept = set[NotKept]()
    if len(inputs) > _DATASETS:
        not_kept.add(NotKept.DATASETS)
    by_kind: dict[ValueKind, dict[str, str]] = {}
    for given in inputs[:_DATASETS]:
        text, is_whole = _dataset_text(given)
        if not is_whole:
            not_kept.add(NotKept.DATASETS)
        if text:
            dataset = given.dataset
            name = hashlib.sha256(f"{dataset.digest}/{dataset.name}".encode()).hexdigest()[:32]
            context = next((tag.value for tag in given.tags if tag.key == _CONTEXT), None)
            by_kind.setdefault(ValueKind.INPUT, {})[name] = text
            by_kind.setdefault(ValueKind.DATASET_NAME, {})[name] = dataset.name
            by_kind.setdefault(ValueKind.DATASET_DIGEST, {})[name] = dataset.digest
            if context is not None:
                by_kind.setdefault(ValueKind.DATASET_CONTEXT, {})[name] = context
    for kind, values in by_kind.items():
        not_kept |= _set(writer, target, kind, values)
    return not_kept


def _dataset_text(given: DatasetInput) -> tuple[str, bool]:
    """A data set as MLflow's JSON, and whether it has all that was given: a large one has neither profile nor schema;
    "" for one that is larger still."""
    dataset = given.dataset
    details = {"profile": dataset.profile, "schema": dataset.schema_text}
    for left_out in ((), ("profile",), ("profile", "schema")):
        fields = {"name": dataset.name, "digest": dataset.digest, "source_type": dataset.source_type}
        fields |= {"source": dataset.source} | {key: details[key] for key in details if key not in left_out}
        tags = [{"key": tag.key, "value": tag.value} for tag in given.tags]
        text = json.dumps({"tags": tags, "dataset": {key: value for key, value in fields.items() if value}})
        if len(text) <= _DATASET_LENGTH:
            return text, not left_out or not any(details[key] for key in left_out)
    return "", False
