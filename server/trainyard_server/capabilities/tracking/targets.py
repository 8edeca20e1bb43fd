"""Runs of MLflow and who may reach them: a job is a run, and its program makes further ones."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard_protocol.errors import NotFound, PermissionDenied, quoted
from trainyard_server.capabilities.tracking import store
from trainyard_server.capabilities.tracking.tables import TrackedRunRow
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.domain.access.run_tokens import RunTokens
from trainyard_server.storage.db.base.models import JobRow, RunRow
from trainyard_server.storage.db.queries.job_queries import JobList
from trainyard_server.storage.db.queries.reader import Reader

ARTIFACTS = "mlflow-artifacts:/"
"""The beginning of the addresses of artifacts that are read through the server."""

_RUN = "job-"
_MODEL = "m-"
_LONGEST_KEY, _LONGEST_NUMBER = 15, 8


@dataclass(frozen=True, slots=True)
class RunTarget:
    """The run that a call is about: a job's own (`further` is None), or one that its program has made beside it. `run`
    is the number of the job's run that calls."""

    job: JobRow
    run: int = 0
    further: TrackedRunRow | None = None

    @property
    def number(self) -> int:
        return self.further.number if self.further is not None else store.OWN

    @property
    def prefix(self) -> str:
        """The beginning of names of metrics and parameters: a further run has its own in its job."""
        return f"{self.further.name}/" if self.further is not None else ""

    @property
    def run_id(self) -> str:
        return run_id(self.job.key, self.number)


def run_id(key: int, number: int = 0) -> str:
    """The id of a job as a run, `job-12`; with a number that of a further run of it, `job-12-3`."""
    return f"{_RUN}{key}-{number}" if number else f"{_RUN}{key}"


def model_id(key: int, number: int) -> str:
    """The id of a model that a program has logged, `m-12-1`."""
    return f"{_MODEL}{key}-{number}"


def experiment_id(project: str) -> str:
    """The id of a project as an experiment: digits, as MLflow's programs expect."""
    return str(int.from_bytes(hashlib.sha256(project.encode()).digest()[:7], "big"))


def parsed_run(wanted: str) -> tuple[int, int] | None:
    """The key of the job and the number that the id of a run is of."""
    return _parsed(wanted, _RUN)


def parsed_model(wanted: str) -> tuple[int, int] | None:
    """The key of the job and the number that the id of a model is of."""
    return _parsed(wanted, _MODEL) if wanted.count("-") == 2 else None


class RunAccess:
    """The runs that a caller reaches."""

    def __init__(self, backend: Backend, run_tokens: RunTokens) -> None:
        self._backend = backend
        self._run_tokens = run_tokens

    def projects(self, caller: Caller) -> Sequence[str]:
        """The projects whose runs the caller sees."""
        if caller.is_run:
            return list(caller.grants)
        with self._backend.store.read() as reader:
            return JobList(reader, caller.visible).projects()

    def chosen(self, caller: Caller, experiments: Sequence[str]) -> list[str]:
        """Those of the projects that have these ids as experiments."""
        wanted = set(experiments)
        return [project for project in self.projects(caller) if experiment_id(project) in wanted]

    def of_token(self, reader: Reader, secret: str, wanted: str = "") -> RunTarget:
        """The job's run that the token is of, or the further one that is wanted. Raises PermissionDenied."""
        run = reader.run(self._run_tokens.run_id(secret))
        if run is None:
            raise PermissionDenied(
                "Only the program of a job logs to its run, with the MLFLOW_TRACKING_TOKEN that it has. People read."
            )
        target = RunTarget(reader.job_by_key(run.job_key), run.number)
        if wanted in ("", target.run_id):
            return target
        further = _further(reader, target.job, run, wanted)
        if further is None:
            raise PermissionDenied(f"The run {quoted(wanted)} is not of this job, whose run is {target.run_id}.")
        return further

    def own_key(self, reader: Reader, secret: str) -> int | None:
        """The key of the job that calls; None for a person."""
        run = reader.run(self._run_tokens.run_id(secret))
        return run.job_key if run is not None else None

    def visible(self, reader: Reader, caller: Caller, wanted: str) -> RunTarget:
        """Raises NotFound."""
        parsed = parsed_run(wanted)
        job = reader.find_job(parsed[0]) if parsed is not None else None
        if parsed is None or job is None or not caller.sees(job.project):
            raise NotFound(f"There is no run {quoted(wanted)}.")
        if not parsed[1]:
            return RunTarget(job)
        further = store.tracked_run(reader, job.key, parsed[1])
        if further is None:
            raise NotFound(f"There is no run {quoted(wanted)}.")
        return RunTarget(job, 0, further)

    def job_dir(self, job: JobRow) -> str:
        """The job-dir, "" of a job without one."""
        given = str(job.training_input.get("jobDir") or "")
        return self._backend.job_dir(job.project, job.owner, job.job_id, given, job.created_at)

    def artifact_uri(self, target: RunTarget, own_key: int | None, below: str = "") -> str:
        """The address of artifacts: for the program of the job where it writes them, for others through the server."""
        job_dir = self.job_dir(target.job)
        if own_key == target.job.key and job_dir:
            parts = [job_dir.rstrip("/"), *artifact_parts(target)]
        else:
            parts = [f"{ARTIFACTS}{target.run_id}"]
        return "/".join([*parts, below] if below else parts)


def artifact_parts(target: RunTarget) -> list[str]:
    """The directory of a run's artifacts in its job-dir."""
    return ["mlflow", *([target.further.name] if target.further is not None else [])]


def _parsed(wanted: str, before: str) -> tuple[int, int] | None:
    key, dash, number = wanted.removeprefix(before).partition("-")
    has_number = number.isdecimal() and number.isascii() and len(number) <= _LONGEST_NUMBER
    if not wanted.startswith(before) or not key.isdecimal() or not key.isascii() or len(key) > _LONGEST_KEY:
        return None
    return (int(key), int(number) if dash else 0) if has_number or not dash else None


def _further(reader: Reader, job: JobRow, run: RunRow, wanted: str) -> RunTarget | None:
    parsed = parsed_run(wanted)
    if parsed is None or parsed[0] != job.key or not parsed[1]:
        return None
    row = store.tracked_run(reader, job.key, parsed[1])
    return None if row is None else RunTarget(job, run.number, row)
