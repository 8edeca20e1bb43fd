"""Models that programs log through MLflow: rows of their job, with artifacts below its job-dir."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cmp_to_key
from typing import Any, NamedTuple

from trainyard_protocol.answers.metrics import number
from trainyard_protocol.errors import InvalidArgument, NotFound, PermissionDenied, Violation, quoted
from trainyard_server.capabilities.tracking import store
from trainyard_server.capabilities.tracking.messages import (
    CreateLoggedModel,
    DatasetOfMetrics,
    KeyValue,
    LoggedMetric,
    ModelOrder,
    SearchLoggedModels,
)
from trainyard_server.capabilities.tracking.models import store as model_store
from trainyard_server.capabilities.tracking.notes import NotKept, note
from trainyard_server.capabilities.tracking.run_views import pairs, time_ms
from trainyard_server.capabilities.tracking.search import mlflow_filter
from trainyard_server.capabilities.tracking.search.mlflow_filter import FieldKind, SearchTerm
from trainyard_server.capabilities.tracking.search.run_search import offset_of
from trainyard_server.capabilities.tracking.tables import LoggedModelRow
from trainyard_server.capabilities.tracking.targets import (
    RunAccess,
    RunTarget,
    experiment_id,
    model_id,
    parsed_model,
    run_id,
)
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer

MAX_CHARACTERS = 64_000
"""Limit of a model's tags, parameters and metrics."""

_STATUSES = {"LOGGED_MODEL_PENDING": "PENDING", "LOGGED_MODEL_READY": "READY", "LOGGED_MODEL_UPLOAD_FAILED": "FAILED"}
_NAMES, _PAGE = 250, 1000
_UNKEPT = 0  # the number of a model that its job has no room for

Json = dict[str, Any]


class _Candidate(NamedTuple):
    """A model that a search has found, with what it is sorted by."""

    keys: tuple[float | str | None, ...]
    job_key: int
    number: int


class LoggedModels:
    def __init__(self, backend: Backend, access: RunAccess, controller: Controller) -> None:
        self._backend = backend
        self._access = access
        self._controller = controller

    def create(self, secret: str, request: CreateLoggedModel) -> Json:
        """Make a model of the calling job. One that there is no room for is answered, and not kept. Raises
        PermissionDenied."""
        now, is_noted = self._backend.clock(), False
        tags, params = _texts(request.tags), _texts(request.params)
        with self._backend.store.write() as writer:
            target = self._access.of_token(writer, secret, request.source_run_id)
            key = target.job.key
            store.lock(writer, key)
            if len(json.dumps([tags, params])) > MAX_CHARACTERS:
                is_noted, tags, params = note(writer, key, target.run, NotKept.MODELS, now), {}, {}
            name = request.name[:_NAMES] or "model"
            row = model_store.add_model(
                writer, key, target.number, name, request.model_type[:_NAMES], tags, params, now
            )
            if row is None:
                is_noted = note(writer, key, target.run, NotKept.MODELS, now)
                row = _unkept(target, name, self._backend)
            answer = self._json(target.job, row, key)
        if is_noted:
            self._controller.write_log_soon(key)
        return answer

    def model(self, caller: Caller, secret: str, wanted: str, *, allow_deleted: bool = False) -> Json:
        """Raises NotFound."""
        with self._backend.store.read() as reader:
            job, row = self._visible(reader, caller, wanted)
            if row.deleted_at is not None and not allow_deleted:
                raise _missing(wanted)
            return self._json(job, row, self._access.own_key(reader, secret) if caller.is_run else None)

    def artifacts_of(self, caller: Caller, wanted: str) -> str:
        """The directory of a model's artifacts, below those of the own run of its job. Raises NotFound."""
        with self._backend.store.read() as reader:
            job, row = self._visible(reader, caller, wanted)
            return f"{run_id(job.key)}/{_directory(row)}"

    def finalize(self, secret: str, wanted: str, status: str) -> Json:
        """Set the status of a model. Raises PermissionDenied, NotFound, InvalidArgument."""
        if status not in _STATUSES:
            allowed = ", ".join(_STATUSES)
            raise InvalidArgument(Violation("status", f"is one of {allowed}; this is {quoted(status)}."))
        return self._change(secret, wanted, lambda _row: {"status": status})

    def set_tags(self, secret: str, wanted: str, tags: Sequence[KeyValue]) -> Json:
        """Raises PermissionDenied, NotFound."""
        return self._change(secret, wanted, lambda row: {"tags": row.tags | _texts(tags)})

    def delete_tag(self, secret: str, wanted: str, key: str) -> None:
        """Raises PermissionDenied, NotFound."""

        def change(row: LoggedModelRow) -> Json:
            if key not in row.tags:
                raise NotFound(f"The model {quoted(wanted)} has no tag {quoted(key)}.")
            return {"tags": {name: value for name, value in row.tags.items() if name != key}}

        self._change(secret, wanted, change)

    def add_params(self, secret: str, wanted: str, params: Sequence[KeyValue]) -> None:
        """Raises PermissionDenied, NotFound."""
        self._change(secret, wanted, lambda row: {"params": row.params | _texts(params)})

    def delete(self, secret: str, wanted: str) -> None:
        """Delete a model; its artifacts stay. Raises PermissionDenied, NotFound."""
        self._change(secret, wanted, lambda _row: {"deleted_at": self._backend.clock()})

    def search(self, caller: Caller, secret: str, request: SearchLoggedModels) -> tuple[list[Json], str]:
        """A page of models, and the token of the next one. Raises InvalidArgument."""
        terms = mlflow_filter.parse_filter(request.filter, mlflow_filter.MODELS)
        fields = [_order_field(order) for order in request.order_by]
        offset, limit = offset_of(request.page_token), min(request.max_results, _PAGE)
        projects = self._access.chosen(caller, request.experiment_ids)
        with self._backend.store.read() as reader:
            found = [
                _Candidate(tuple(_sort_value(row, *field) for field in fields), row.job_key, row.number)
                for row in model_store.newest_models(reader, projects)
                if _meets(row, terms, request.datasets)
            ]
            for index in reversed(range(len(fields))):
                found.sort(key=_sort_key(index, ascending=request.order_by[index].ascending))
            page = found[offset : offset + limit]
            own_key = self._access.own_key(reader, secret) if caller.is_run else None
            models = [self._of_candidate(reader, candidate, own_key) for candidate in page]
        end = offset + len(models)
        return models, str(end) if end < len(found) else ""

    def _of_candidate(self, reader: Reader, candidate: _Candidate, own_key: int | None) -> Json:
        row = model_store.model(reader, candidate.job_key, candidate.number)
        assert row is not None  # of the same view of the database
        return self._json(reader.job_by_key(candidate.job_key), row, own_key)

    def _visible(self, reader: Reader, caller: Caller, wanted: str) -> tuple[JobRow, LoggedModelRow]:
        parsed = parsed_model(wanted)
        job = reader.find_job(parsed[0]) if parsed is not None else None
        if parsed is None or job is None or not caller.sees(job.project):
            raise _missing(wanted)
        row = model_store.model(reader, *parsed) if parsed[1] else _unkept(RunTarget(job), "model", self._backend)
        if row is None:
            raise _missing(wanted)
        return job, row

    def _change(self, secret: str, wanted: str, change: Callable[[LoggedModelRow], Json]) -> Json:
        """Change columns of a model of the calling job. A change that makes it too large is not kept."""
        now, is_noted = self._backend.clock(), False
        with self._backend.store.write() as writer:
            target, parsed = self._access.of_token(writer, secret), parsed_model(wanted)
            key = target.job.key
            if parsed is None or parsed[0] != key:
                raise PermissionDenied(f"The model {quoted(wanted)} is not of this job, {target.run_id}.")
            store.lock(writer, key)
            is_kept = parsed[1] != _UNKEPT
            row = model_store.model(writer, *parsed) if is_kept else _unkept(target, "model", self._backend)
            if row is None or row.deleted_at is not None:
                raise _missing(wanted)
            before = row.tags, row.params
            for column, value in change(row).items():
                setattr(row, column, value)
            if is_kept:
                if _size(row) > MAX_CHARACTERS:
                    row.tags, row.params = before
                    is_noted = note(writer, key, target.run, NotKept.MODELS, now)
                row.updated_at = now
                writer.session.flush()
            answer = self._json(target.job, row, key)
        if is_noted:
            self._controller.write_log_soon(key)
        return answer

    def _json(self, job: JobRow, row: LoggedModelRow, own_key: int | None) -> Json:
        info = {
            "model_id": model_id(job.key, row.number),
            "experiment_id": experiment_id(job.project),
            "name": row.name,
            "creation_timestamp_ms": time_ms(row.created_at),
            "last_updated_timestamp_ms": time_ms(row.updated_at),
            "artifact_uri": self._access.artifact_uri(RunTarget(job), own_key, _directory(row)),
            "status": row.status,
            "model_type": row.model_type,
            "source_run_id": run_id(job.key, row.source),
            "tags": pairs(row.tags),
        }
        return {"info": info, "data": {"params": pairs(row.params), "metrics": row.metrics}}


def add_model_metrics(writer: Writer, target: RunTarget, metrics: Sequence[LoggedMetric], now_ms: int) -> set[NotKept]:
    """Add metrics to the models of the job that they name: every value, or of each metric on each data set the newest
    where a model has too many."""
    by_model: dict[int, list[LoggedMetric]] = {}
    for metric in metrics:
        parsed = parsed_model(metric.model_id)
        if parsed is not None and parsed[0] == target.job.key:
            by_model.setdefault(parsed[1], []).append(metric)
    not_kept = set[NotKept]()
    for model_number, of_model in by_model.items():
        row = model_store.model(writer, target.job.key, model_number)
        if row is None:
            continue
        before = row.metrics
        added = [_metric_json(target, metric, now_ms) for metric in of_model]
        row.metrics = [*before, *(value for value in _distinct(added) if value not in before)]
        if _size(row) > MAX_CHARACTERS:
            row.metrics = _newest(before, added)
        if _size(row) > MAX_CHARACTERS:
            row.metrics = before
            not_kept.add(NotKept.MODELS)
    writer.session.flush()
    return not_kept


def _metric_json(target: RunTarget, metric: LoggedMetric, now_ms: int) -> Json:
    value: Json = {"key": metric.key, "value": number(metric.value)}
    value |= {"timestamp": metric.time_ms(now_ms), "step": metric.step}
    if metric.dataset_name:
        value |= {"dataset_name": metric.dataset_name, "dataset_digest": metric.dataset_digest}
    return value | {"model_id": metric.model_id, "run_id": target.run_id}


def _distinct(values: Sequence[Json]) -> list[Json]:
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())


def _newest(before: Sequence[Json], added: Sequence[Json]) -> list[Json]:
    newest: dict[tuple[str, ...], Json] = {}
    for value in (*before, *added):
        identity = tuple(str(value.get(name, "")) for name in ("key", "dataset_name", "dataset_digest"))
        other = newest.get(identity)
        if other is None or (value["step"], value["timestamp"]) >= (other["step"], other["timestamp"]):
            newest[identity] = value
    return list(newest.values())


def _size(row: LoggedModelRow) -> int:
    return len(json.dumps([row.tags, row.params, row.metrics]))


def _texts(given: Sequence[KeyValue]) -> dict[str, str]:
    return {text.key[:_NAMES]: text.value for text in given}


def _directory(row: LoggedModelRow) -> str:
    return f"models/{model_id(row.job_key, row.number)}/artifacts"


def _unkept(target: RunTarget, name: str, backend: Backend) -> LoggedModelRow:
    """The answer for a model that the job has no room for."""
    now = backend.clock()
    return LoggedModelRow(
        job_key=target.job.key,
        number=_UNKEPT,
        source=target.number,
        name=name,
        model_type="",
        status="LOGGED_MODEL_PENDING",
        created_at=now,
        updated_at=now,
        tags={},
        params={},
        metrics=[],
    )


def _missing(wanted: str) -> NotFound:
    return NotFound(f"There is no model {quoted(wanted)}.")


def _meets(row: LoggedModelRow, terms: Sequence[SearchTerm], datasets: Sequence[DatasetOfMetrics]) -> bool:
    of_metrics = [term for term in terms if term.field.kind is FieldKind.METRIC]
    if datasets and not of_metrics and not _on_datasets(row.metrics, datasets):
        return False
    return all(
        any(mlflow_filter.matches(term.op, value, term.value) for value in _values(row, term, datasets))
        for term in terms
    )


def _values(
    row: LoggedModelRow, term: SearchTerm, datasets: Sequence[DatasetOfMetrics]
) -> Sequence[str | float | None]:
    """The values that a comparison may meet: of a metric each, as MLflow has it."""
    if term.field.kind is not FieldKind.METRIC:
        return (_value(row, term),)
    values = [value for value in row.metrics if value["key"] == term.field.key]
    return [float(value["value"]) for value in (_on_datasets(values, datasets) if datasets else values)]


def _value(row: LoggedModelRow, term: SearchTerm) -> str | float | None:
    key = term.field.key
    match term.field.kind:
        case FieldKind.PARAM:
            return row.params.get(key)
        case FieldKind.TAG:
            return row.tags.get(key)
    if key == "status" and str(term.value).startswith("LOGGED_MODEL_"):
        return row.status
    return _attribute(row, key)


def _attribute(row: LoggedModelRow, key: str) -> str | float:
    attributes: Mapping[str, str | float] = {
        "name": row.name,
        "model_id": model_id(row.job_key, row.number),
        "model_type": row.model_type,
        "status": _STATUSES[row.status],
        "source_run_id": run_id(row.job_key, row.source),
        "creation_timestamp": time_ms(row.created_at),
        "last_updated_timestamp": time_ms(row.updated_at),
    }
    return attributes[key]


def _on_datasets(values: Sequence[Json], datasets: Sequence[DatasetOfMetrics]) -> list[Json]:
    return [
        value
        for value in values
        if any(
            value.get("dataset_name") == dataset.dataset_name
            and dataset.dataset_digest in ("", value.get("dataset_digest"))
            for dataset in datasets
        )
    ]


def _order_field(order: ModelOrder) -> tuple[FieldKind, str, tuple[DatasetOfMetrics, ...]]:
    before, dot, key = order.field_name.strip().partition(".")
    if dot and before == "metrics":
        on = (DatasetOfMetrics(dataset_name=order.dataset_name, dataset_digest=order.dataset_digest),)
        return FieldKind.METRIC, key.strip("`\"'"), on if order.dataset_name else ()
    attributes = mlflow_filter.MODELS.attributes
    if dot or before not in attributes:
        allowed = ", ".join(dict.fromkeys(attributes.values()))
        message = f"sorts by metrics.NAME, {allowed}; this is {quoted(order.field_name)}."
        raise InvalidArgument(Violation("order_by", message))
    return FieldKind.ATTRIBUTE, attributes[before], ()


def _sort_value(
    row: LoggedModelRow, kind: FieldKind, key: str, datasets: tuple[DatasetOfMetrics, ...]
) -> float | str | None:
    if kind is FieldKind.ATTRIBUTE:
        return _attribute(row, key)
    values = [value for value in row.metrics if value["key"] == key]
    chosen = _on_datasets(values, datasets) if datasets else values
    newest = max(chosen, key=lambda value: (value["timestamp"], value["step"]), default=None)
    value = None if newest is None else float(newest["value"])
    return None if value is None or value != value else value


def _sort_key(index: int, *, ascending: bool) -> Any:
    """The order by one field; models without it come last."""

    def compared(first: _Candidate, second: _Candidate) -> int:
        left: Any = first.keys[index]
        right: Any = second.keys[index]
        if left is None or right is None:
            return (left is None) - (right is None)
        order = int(left > right) - int(left < right)
        return order if ascending else -order

    return cmp_to_key(compared)
