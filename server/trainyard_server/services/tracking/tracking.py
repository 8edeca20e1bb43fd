"""MLflow's tracking, on jobs: an experiment is a project, a run is a job. Programs log by the token of their run."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Violation, quoted
from trainyard_protocol.lines.progress import MAX_NAME, MAX_STEP
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.domain.access.run_tokens import RunTokens
from trainyard_server.domain.metrics.summary import MetricSummary
from trainyard_server.services.tracking.messages import CreateRun, KeyValue, LoggedMetric
from trainyard_server.storage.db.base.models import JobRow, RunRow, TrackedRunRow
from trainyard_server.storage.db.queries.job_queries import JobList
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import job_values, tracking
from trainyard_server.storage.db.tables.tracking import LoggedPoint
from trainyard_server.storage.events.notifier import PROGRESS_TOPIC, log_topic

_STATUSES = {
    JobState.QUEUED: "SCHEDULED",
    JobState.PREPARING: "SCHEDULED",
    JobState.SUCCEEDED: "FINISHED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "KILLED",
}
_RUN_STATUSES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
_RUN, _NO_DIRECTORY = "job-", "mlflow-artifacts:/none"
_PARAMETER_NAMES = 100
_SHOWN_RUN = "run"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Target:
    """The run that a call is about: a job's own (`further` is None), or one that its program has made beside it."""

    job: JobRow
    run: int
    further: TrackedRunRow | None = None

    @property
    def prefix(self) -> str:
        """The beginning of names of metrics and parameters: a further run has its own in its job."""
        return f"{self.further.name}/" if self.further is not None else ""

    @property
    def run_id(self) -> str:
        return run_id(self.job.key, self.further.number if self.further is not None else 0)


def run_id(key: int, number: int = 0) -> str:
    """The id of a job as a run, `job-12`; with a number that of a further run of it, `job-12-3`."""
    return f"{_RUN}{key}-{number}" if number else f"{_RUN}{key}"


def experiment_id(project: str) -> str:
    """The id of a project as an experiment: digits, as MLflow's programs expect."""
    return str(int.from_bytes(hashlib.sha256(project.encode()).digest()[:7], "big"))


class Tracking:
    def __init__(self, backend: Backend, run_tokens: RunTokens) -> None:
        self._backend = backend
        self._run_tokens = run_tokens

    def experiment(self, caller: Caller, *, wanted_id: str = "", name: str = "") -> Json:
        """The experiment of that id or name. A program's is its project, whatever name it asks for. Raises NotFound."""
        for project in self._projects(caller):
            if caller.is_run or project == name or (wanted_id and experiment_id(project) == wanted_id):
                if caller.is_run and wanted_id not in ("", "0", experiment_id(project)):
                    break
                return _experiment(project)
        raise NotFound(f"There is no experiment {quoted(name or wanted_id)}: experiments are projects.")

    def experiments(self, caller: Caller) -> list[Json]:
        return [_experiment(project) for project in self._projects(caller)]

    def create_run(self, secret: str, request: CreateRun) -> Json:
        """Make a run: the first one of a program that has not opened the job's own is that, others are further runs.
        Raises PermissionDenied; InvalidArgument where it has too
        many."""
        now = self._backend.clock()
        tags = {tag.key: tag.value for tag in request.tags}
        name = request.run_name or tags.get("mlflow.runName") or _SHOWN_RUN
        with self._backend.store.write() as writer:
            target = self._of_token(writer, secret)
            if tracking.open_own(writer, target.job.key, target.run, now):
                return _run(target, self._job_dir(target.job), {}, {})
            clean = "".join(letter for letter in name if letter.isprintable())[: MAX_NAME // 2] or _SHOWN_RUN
            row = tracking.add_run(writer, target.job.key, clean, now)
            if row is None:
                raise InvalidArgument(f"A job has at most {tracking.MAX_RUNS} further runs.")
            return _run(_Target(target.job, target.run, row), self._job_dir(target.job), {}, {})

    def update_run(self, secret: str, wanted: str, status: str) -> Json:
        """Set the status of a further run. The job's own follows its program: another status of it is ignored."""
        if status and status not in _RUN_STATUSES:
            allowed = ", ".join(_RUN_STATUSES)
            raise InvalidArgument(Violation("status", f"is one of {allowed}; this is {quoted(status)}."))
        with self._backend.store.write() as writer:
            target, now = self._of_token(writer, secret, wanted), self._backend.clock()
            if target.further is None:
                tracking.open_own(writer, target.job.key, target.run, now)
            elif status:
                tracking.set_status(writer, target.job.key, target.further.number, status, now)
                writer.session.refresh(target.further)
            return _run(target, self._job_dir(target.job), {}, {})

    def log(
        self, secret: str, wanted: str, metrics: Sequence[LoggedMetric] = (), params: Sequence[KeyValue] = ()
    ) -> None:
        """Record metrics and parameters of the calling job, or of a further run of it. Raises PermissionDenied,
        InvalidArgument."""
        now = self._backend.clock()
        now_ms = int(now.timestamp() * 1000)
        with self._backend.store.write() as writer:
            target = self._of_token(writer, secret, wanted)
            if target.further is None:
                tracking.open_own(writer, target.job.key, target.run, now)
            points = [_point(metric, target.prefix, now_ms) for metric in metrics]
            if points:
                tracking.add_points(writer, target.job.key, target.run, points)
                job_values.record(writer, {target.job.key: _summaries(points)})
            if params:
                named = {f"{target.prefix}{param.key}"[:_PARAMETER_NAMES]: param.value for param in params}
                left_out = job_values.add_parameters(writer, target.job.key, named)
                if left_out:
                    raise InvalidArgument(f"A job has at most {job_values.MAX_OF_A_JOB} parameters.")
        if points:
            self._backend.notifier.publish(log_topic(target.job.key), PROGRESS_TOPIC)

    def run(self, caller: Caller, wanted: str) -> Json:
        """A run with its newest metrics and its parameters. Raises NotFound."""
        with self._backend.store.read() as reader:
            target = self._visible(reader, caller, wanted)
            return self._with_values(reader, [target])[0]

    def check_own(self, secret: str, wanted: str) -> None:
        """Raises PermissionDenied unless the run is of the job that calls."""
        with self._backend.store.read() as reader:
            self._of_token(reader, secret, wanted)

    def history(self, caller: Caller, wanted: str, metric: str) -> list[Json]:
        """Every logged point of a metric. Raises NotFound."""
        with self._backend.store.read() as reader:
            target = self._visible(reader, caller, wanted)
            name, number, points = target.prefix + metric, 0, list[Json]()
            while rows := tracking.points_after(reader, target.job.key, number, 1000):
                number = rows[-1].number
                points += [
                    {"key": metric, "value": float(value), "timestamp": time_ms, "step": step}
                    for row in rows
                    for own, step, value, time_ms in row.points
                    if own == name
                ]
        return points

    def search(self, caller: Caller, experiments: Iterable[str], limit: int, page_token: str) -> tuple[list[Json], str]:
        """The newest jobs of these experiments, and the token of the next page. Raises InvalidArgument."""
        below = int(page_token) if page_token.isdecimal() and len(page_token) < 19 else None
        if page_token and below is None:
            raise InvalidArgument(Violation("page_token", f"is none of this server: {quoted(page_token)}."))
        wanted = set(experiments)
        projects = [project for project in self._projects(caller) if experiment_id(project) in wanted]
        with self._backend.store.read() as reader:
            jobs = reader.newest_jobs(projects, below, limit + 1)
            runs = self._with_values(reader, [_Target(job, 0) for job in jobs[:limit]])
        return runs, str(jobs[limit - 1].key) if len(jobs) > limit else ""

    def _projects(self, caller: Caller) -> Sequence[str]:
        if caller.is_run:
            return list(caller.grants)
        with self._backend.store.read() as reader:
            return JobList(reader, caller.visible).projects()

    def _of_token(self, reader: Reader, secret: str, wanted: str = "") -> _Target:
        """The job's run that the token is of, or the further one that is wanted. Raises PermissionDenied."""
        run = reader.run(self._run_tokens.run_id(secret))
        if run is None:
            raise PermissionDenied(
                "Only the program of a job logs to its run, with the MLFLOW_TRACKING_TOKEN that it has. People read."
            )
        target = _Target(reader.job_by_key(run.job_key), run.number)
        if wanted in ("", target.run_id):
            return target
        further = _further(reader, target.job, run, wanted)
        if further is None:
            raise PermissionDenied(f"The run {quoted(wanted)} is not of this job, whose run is {target.run_id}.")
        return further

    def _visible(self, reader: Reader, caller: Caller, wanted: str) -> _Target:
        key, _, number = wanted.removeprefix(_RUN).partition("-")
        is_id = wanted.startswith(_RUN) and key.isdecimal() and len(key) < 16
        job = reader.find_job(int(key)) if is_id else None
        if job is None or not caller.sees(job.project):
            raise NotFound(f"There is no run {quoted(wanted)}.")
        if not number:
            return _Target(job, 0)
        further = tracking.tracked_run(reader, job.key, int(number)) if number.isdecimal() and len(number) < 9 else None
        if further is None:
            raise NotFound(f"There is no run {quoted(wanted)}.")
        return _Target(job, 0, further)

    def _with_values(self, reader: Reader, targets: Sequence[_Target]) -> list[Json]:
        values = job_values.values_of(reader, [target.job.key for target in targets], None, None)
        return [
            _run(
                target,
                self._job_dir(target.job),
                _own(values[target.job.key].metrics, target.prefix),
                _own(values[target.job.key].parameters, target.prefix),
            )
            for target in targets
        ]

    def _job_dir(self, job: JobRow) -> str:
        given = str(job.training_input.get("jobDir") or "")
        return self._backend.job_dir(job.project, job.owner, job.job_id, given, job.created_at)


def _further(reader: Reader, job: JobRow, run: RunRow, wanted: str) -> _Target | None:
    number = wanted.removeprefix(f"{run_id(job.key)}-")
    if number == wanted or not number.isdecimal() or len(number) > 8:
        return None
    row = tracking.tracked_run(reader, job.key, int(number))
    return None if row is None else _Target(job, run.number, row)


def _own(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _point(metric: LoggedMetric, prefix: str, now_ms: int) -> LoggedPoint:
    name = f"{prefix}{metric.key}"
    if len(name) > MAX_NAME or not name.isprintable():
        rule = f"has at most {MAX_NAME - len(prefix)} printable characters"
        raise InvalidArgument(Violation("key", f"{rule}; this is {quoted(metric.key)}."))
    if not -MAX_STEP <= metric.step <= MAX_STEP:
        raise InvalidArgument(Violation("step", f"is at most {MAX_STEP}; this is {metric.step}."))
    is_time = 0 < metric.timestamp < 1 << 53
    return LoggedPoint(name, max(0, metric.step), metric.value, metric.timestamp if is_time else now_ms)


def _summaries(points: Sequence[LoggedPoint]) -> dict[str, MetricSummary]:
    by_name = sorted(points, key=lambda point: point.name)
    summaries = {}
    for name, group in groupby(by_name, key=lambda point: point.name):
        values = sorted(group, key=lambda point: point.step)
        summaries[name] = MetricSummary.of(values[-1].step, values[-1].value, [point.value for point in values])
    return summaries


def _experiment(project: str) -> Json:
    return {
        "experiment_id": experiment_id(project),
        "name": project,
        "artifact_location": _NO_DIRECTORY,
        "lifecycle_stage": "active",
        "tags": [],
    }


def _run(target: _Target, job_dir: str, metrics: Mapping[str, MetricSummary], params: Mapping[str, str]) -> Json:
    job, further = target.job, target.further
    name = further.name if further is not None else job.job_id
    status = further.status if further is not None else _STATUSES.get(job.state, "RUNNING")
    started = further.started_at if further is not None else job.started_at or job.created_at
    ended = further.ended_at if further is not None else job.ended_at if job.state in FINAL_JOB_STATES else None
    below = f"/{further.name}" if further is not None else ""
    info: Json = {
        "run_id": target.run_id,
        "run_uuid": target.run_id,
        "run_name": name,
        "experiment_id": experiment_id(job.project),
        "user_id": job.owner,
        "status": status,
        "start_time": _ms(started),
        "artifact_uri": f"{job_dir.rstrip('/')}/mlflow{below}" if job_dir else _NO_DIRECTORY,
        "lifecycle_stage": "active",
    }
    if ended is not None:
        info["end_time"] = _ms(ended)
    tags = {"mlflow.runName": name, "mlflow.user": job.owner, **job.labels}
    if further is not None:
        tags["mlflow.parentRunId"] = run_id(job.key)
    measured = [
        {"key": key, "value": summary.last, "step": summary.step, "timestamp": _ms(started)}
        for key, summary in metrics.items()
        if summary.last is not None
    ]
    data = {
        "metrics": measured,
        "params": [{"key": key, "value": value} for key, value in params.items()],
        "tags": [{"key": key, "value": value} for key, value in tags.items()],
    }
    return {"info": info, "data": data, "inputs": {}}


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def no_artifacts() -> FailedPrecondition:
    return FailedPrecondition(
        "Artifacts are written to the job-dir of a job, and this one has none: submit it with --job-dir."
    )
