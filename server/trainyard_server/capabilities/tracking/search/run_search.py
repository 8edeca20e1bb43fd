"""Searches of MLflow: experiments, which are projects, and runs."""

from collections.abc import Sequence
from typing import Any

from trainyard_protocol.errors import InvalidArgument, NotFound, Violation, quoted
from trainyard_server.capabilities.tracking import store
from trainyard_server.capabilities.tracking.messages import SearchExperiments, SearchRuns
from trainyard_server.capabilities.tracking.run_views import runs_json
from trainyard_server.capabilities.tracking.search import mlflow_filter
from trainyard_server.capabilities.tracking.search.mlflow_filter import FieldKind, SearchTerm
from trainyard_server.capabilities.tracking.search.run_queries import FoundRun, RunList, ViewType
from trainyard_server.capabilities.tracking.targets import (
    ARTIFACTS,
    RunAccess,
    RunTarget,
    experiment_id,
    parsed_model,
    parsed_run,
)
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.storage.db.queries.reader import Reader

_PAGE = 1000
_JOBS_AT_ONCE = 50
_METRICS = 50_000  # of the runs on one page
_DIGITS = 9

Json = dict[str, Any]


class RunSearch:
    def __init__(self, backend: Backend, access: RunAccess) -> None:
        self._backend = backend
        self._access = access

    def experiment(self, caller: Caller, *, wanted_id: str = "", name: str = "") -> Json:
        """The experiment of that id or name. A program's is its project, whatever name it asks for. Raises NotFound."""
        for project in self._access.projects(caller):
            if caller.is_run or project == name or (wanted_id and experiment_id(project) == wanted_id):
                if caller.is_run and wanted_id not in ("", "0", experiment_id(project)):
                    break
                return _experiment(project)
        raise NotFound(f"There is no experiment {quoted(name or wanted_id)}: experiments are projects.")

    def experiments(self, caller: Caller, request: SearchExperiments) -> tuple[list[Json], str]:
        """The projects that one sees, and the token of the next page. Raises InvalidArgument."""
        terms = mlflow_filter.parse_filter(request.filter, mlflow_filter.EXPERIMENTS)
        orders = mlflow_filter.parse_orders(request.order_by, mlflow_filter.EXPERIMENTS)
        offset, view = offset_of(request.page_token), view_of(request.view_type)
        projects = [] if view is ViewType.DELETED_ONLY else list(self._access.projects(caller))
        found = [project for project in projects if all(_meets(project, term) for term in terms)]
        for order in reversed(orders):
            found.sort(key=lambda project: str(_value(project, order.field.key)), reverse=order.descending)
        page = found[offset : offset + min(request.max_results, _PAGE)]
        end = offset + len(page)
        return [_experiment(project) for project in page], str(end) if end < len(found) else ""

    def runs(self, caller: Caller, secret: str, request: SearchRuns) -> tuple[list[Json], str]:
        """A page of runs, and the token of the next one. Raises InvalidArgument."""
        terms = mlflow_filter.parse_filter(request.filter, mlflow_filter.RUNS)
        orders = mlflow_filter.parse_orders(request.order_by, mlflow_filter.RUNS)
        offset, view = offset_of(request.page_token), view_of(request.run_view_type)
        projects = self._access.chosen(caller, request.experiment_ids)
        limit = min(request.max_results, _PAGE)
        with self._backend.store.read() as reader:
            listed = RunList(reader, projects, view)
            found = listed.find(terms, orders, offset, limit + 1) if projects else []
            page = list(found[:limit])
            own_key = self._access.own_key(reader, secret) if caller.is_run else None
            runs = self._shown(reader, page[: listed.fitting(page)], own_key)
        return runs, str(offset + len(runs)) if len(found) > len(runs) else ""

    def job_of(self, caller: Caller, wanted: str) -> tuple[str, str]:
        """The project and the id of the job that a run or a model is of. Raises NotFound."""
        parsed = parsed_run(wanted) or parsed_model(wanted)
        with self._backend.store.read() as reader:
            job = reader.find_job(parsed[0]) if parsed is not None else None
            if job is None or not caller.sees(job.project):
                raise NotFound(f"There is no run and no model {quoted(wanted)}.")
            return job.project, job.job_id

    def _shown(self, reader: Reader, found: Sequence[FoundRun], own_key: int | None) -> list[Json]:
        """The first of these runs, as many as have a bounded number of metrics: at least those of some jobs."""
        runs, metrics = list[Json](), 0
        for at in range(0, len(found), _JOBS_AT_ONCE):
            part = found[at : at + _JOBS_AT_ONCE]
            shown = runs_json(reader, self._access, _targets(reader, part), own_key)
            runs += shown
            metrics += sum(len(run["data"]["metrics"]) for run in shown)
            if metrics > _METRICS:
                break
        return runs


def offset_of(page_token: str) -> int:
    """The offset that a page begins at. Raises InvalidArgument."""
    if not page_token:
        return 0
    if not (page_token.isdecimal() and page_token.isascii() and len(page_token) <= _DIGITS):
        raise InvalidArgument(Violation("page_token", f"is none of this server: {quoted(page_token)}."))
    return int(page_token)


def view_of(text: str) -> ViewType:
    """Raises InvalidArgument."""
    try:
        return ViewType(text or ViewType.ACTIVE_ONLY)
    except ValueError as error:
        allowed = ", ".join(ViewType)
        raise InvalidArgument(Violation("view_type", f"is one of {allowed}; this is {quoted(text)}.")) from error


def _targets(reader: Reader, found: Sequence[FoundRun]) -> list[RunTarget]:
    keys = {run.key for run in found}
    jobs = reader.jobs_by_key(keys)
    further = {(row.job_key, row.number): row for rows in store.further_runs(reader, keys).values() for row in rows}
    return [RunTarget(jobs[run.key], 0, further.get((run.key, run.number))) for run in found]


def _meets(project: str, term: SearchTerm) -> bool:
    if term.field.kind is FieldKind.TAG:
        return term.op == "IS NULL"
    return mlflow_filter.matches(term.op, _value(project, term.field.key), term.value)


def _value(project: str, key: str) -> str | float:
    """An attribute of an experiment; projects have no times."""
    return {"name": project, "experiment_id": experiment_id(project)}.get(key, 0)


def _experiment(project: str) -> Json:
    return {
        "experiment_id": experiment_id(project),
        "name": project,
        "artifact_location": f"{ARTIFACTS}none",
        "lifecycle_stage": "active",
        "tags": [],
    }
