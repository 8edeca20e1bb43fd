"""Python client: submits jobs, waits for them, and reads their logs, metrics and files.

It finds the server as the command line does and sends the same requests. What it does meanwhile (packaging, lost
connections) it reports to the logger `trainyard`.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

from trainyard import frame, metrics, notebook
from trainyard.metrics import Metric, Metrics
from trainyard_cli import client as http
from trainyard_cli.commands.jobs.logs import log_query, task_name
from trainyard_cli.local.connect import connect
from trainyard_cli.local.state import LocalState
from trainyard_cli.origin import record
from trainyard_cli.output.jobs.studies import best_first
from trainyard_cli.settings import DEFAULT_PROJECT, Target, checked_project, default_state_dir
from trainyard_cli.submission import config_file, places
from trainyard_cli.submission import submit as submission
from trainyard_cli.submission.flags import JobFlags
from trainyard_cli.submission.from_job import trial_config
from trainyard_cli.submission.sweep import SweptFlag, swept
from trainyard_cli.submission.upload import ensure_bucket, to_bucket, to_server
from trainyard_cli.v1_client import RETRY_DELAYS
from trainyard_protocol.answers.files import FileEntry
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.answers.metrics import MetricsView
from trainyard_protocol.answers.tuning import TrialView as Trial
from trainyard_protocol.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    TrainyardError,
    Unavailable,
    quoted,
)
from trainyard_protocol.states import FINAL_JOB_STATES, JobState

__all__ = ["Client", "Job", "JobFailed", "Metric", "Metrics", "TrainyardError", "Trial", "WaitTimeout"]

logger = logging.getLogger("trainyard")

_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)
_LONGEST_PAUSE_S = 1.5
"""Between two looks at a job that is waited for."""

StrPath = str | os.PathLike[str]


class JobFailed(TrainyardError):
    """The job ended in another state than SUCCEEDED. `detail.verdict` has the first failure with its last lines."""

    def __init__(self, detail: JobDetail) -> None:
        cause = detail.job.get("errorMessage") or "The cause is not known."
        super().__init__(f"The job {detail.job['jobId']} ended as {detail.state}. {cause}")
        self.detail = detail


class WaitTimeout(TrainyardError, TimeoutError):
    """The job had not ended when the time was over. It goes on."""


class Client:
    """Connection to a server: the one at `server`, else at $TRAINYARD_SERVER, else the local service of `state_dir`.

    The token comes from `token_file` or $TRAINYARD_TOKEN; the local service needs none. `ca_file` or $TRAINYARD_CA_FILE
    has the authorities of an https:// server's certificate, by default the operating system. Raises FailedPrecondition
    or Unavailable without a server. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        server: str = "",
        *,
        project: str = DEFAULT_PROJECT,
        token_file: StrPath | None = None,
        ca_file: StrPath | None = None,
        state_dir: StrPath | None = None,
    ) -> None:
        target = Target(
            state_dir=Path(state_dir).expanduser().absolute() if state_dir else default_state_dir(),
            project=checked_project(project, "project"),
            server=server,
            token_file=Path(token_file).expanduser() if token_file else None,
            local=state_dir is not None,
            ca_file=Path(ca_file) if ca_file else None,
        )
        self.project = project
        self._http = connect(target, logger.warning)
        state = LocalState(target.state_dir)
        self._storage = state.storage_url() if self._http.server.local else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self._http.server.url}, project {self.project}>"

    def close(self) -> None:
        self._http.close()

    def submit(
        self,
        config: StrPath | Mapping[str, Any] | None = None,
        *,
        job_id: str = "",
        args: Sequence[object] | Mapping[str, object] = (),
        package_path: StrPath | None = None,
        include: Sequence[StrPath] = (),
        module_name: str = "",
        packages: Sequence[StrPath] = (),
        image: str = "",
        job_dir: StrPath = "",
        pass_job_dir: bool = False,
        labels: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        mounts: Mapping[str, str] | None = None,
        cpus: int | None = None,
        band: Literal["", "production", "normal", "batch"] = "",
        notify: str | Sequence[str] = (),
        after: "str | Job | Sequence[str | Job]" = (),
        staging_bucket: str = "",
        sweep: Mapping[str, Sequence[object]] | None = None,
        sweep_style: Literal["", "flags", "flags-with-equals", "overrides"] = "",
        metric: str = "",
        goal: Literal["", "maximize", "minimize"] = "",
        parallel_trials: int = 0,
        early_stopping: Literal["", "asha", "median"] = "",
        from_trial: "str | Trial" = "",
        no_diff: bool = False,
    ) -> "Job":
        """Submit a job: a config, as a file or as a mapping, with these values in place of its own.

        Each parameter is the flag of `jobs submit training` with its name; `image` is --master-image-uri, `secrets` is
        --set-secrets: names of secrets by variable or path; `env` has variables by name; `mounts` are --mount: paths by
        name, "" for /mnt/NAME; `notify` is a channel, address or URL, or several; `after` is a job, a text such as
        "train:metrics.val_loss<0.3", or several; `sweep` has the values of each flag.
        `args` are words of the program's arguments, or its flags as a mapping: {"lr": 0.1} is --lr=0.1. A program is
        packaged and uploaded. Raises InvalidArgument with every violation, AlreadyExists for a taken id.
        """
        if cpus is not None and cpus < 1:
            raise InvalidArgument(f"cpus must be at least 1; this is {cpus}.")
        given: dict[str, Any] = {
            "package_path": os.fspath(package_path) if package_path else "",
            "include": tuple(map(os.fspath, include)),
            "module_name": module_name,
            "packages": (tuple(os.fspath(package) for package in packages),) if packages else (),
            "master_image_uri": image,
            "job_dir": os.fspath(job_dir),
            "pass_job_dir": pass_job_dir,
            "labels": (dict(labels),) if labels else (),
            "set_secrets": (dict(secrets),) if secrets else (),
            "env": tuple((env or {}).items()),
            "mount": tuple((mounts or {}).items()),
            "cpus": cpus,
            "band": band,
            "notify": (notify,) if isinstance(notify, str) and notify else tuple(notify),
            "sweep": tuple(_swept(name, values) for name, values in (sweep or {}).items()),
            "sweep_style": sweep_style,
            "metric": metric,
            "goal": goal,
            "parallel_trials": parallel_trials,
            "early_stopping": early_stopping,
        }
        predecessors = (after,) if isinstance(after, str | Job) else after
        if words := tuple(job.id if isinstance(job, Job) else job for job in predecessors if job):
            given["after"] = (words,)
        flags = JobFlags({name: value for name, value in given.items() if value})
        user_args = _words(args)
        source = config_file.of(config) if isinstance(config, Mapping) else Path(config) if config else None
        repeats = ""
        if from_trial:
            if source is not None:
                raise InvalidArgument("config and from_trial exclude each other.")
            name = from_trial.job_id if isinstance(from_trial, Trial) else from_trial.replace("/", ".")
            source, flags, repeats = trial_config(self._http, name, user_args, logger.info, flags)
            user_args = ()
        draft = submission.draft(source, flags, current_dir=Path.cwd(), name=job_id, user_args=user_args)
        draft = places.for_server(draft, logger.info, is_local=self._http.server.local)
        self._check(draft)
        directory = draft.data.job_dir
        if self._storage and directory.startswith("gs://"):
            ensure_bucket(directory, self._storage, logger.info)
        upload = to_bucket(staging_bucket, self._storage, logger.info) if staging_bucket else to_server(self._http)
        submitted = record.Submitted(draft, source, repeats=repeats, no_diff=no_diff)
        origin = record.prepare(self._http, submitted, logger.warning)
        created = submission.submit(draft, self._http, upload=upload, notify=logger.info)
        record.send(self._http, created, origin, logger.warning)
        return Job(self._http, created)

    def _check(self, draft: submission.JobDraft) -> None:
        """Check the job before anything is built and uploaded. A default name that is taken is replaced later."""
        try:
            with submission.in_users_terms(draft):
                self._http.validate_job(draft.named(next(submission.job_names(draft))))
        except AlreadyExists:
            if draft.name:
                raise

    def job(self, job_id: str) -> "Job":
        """A job by its id, or a trial as `STUDY/7`. Raises NotFound, with a similar id if there is one."""
        try:
            return Job(self._http, self._http.get_job(job_id.replace("/", ".")))
        except NotFound as error:
            raise self._http.explained(error) from error

    def jobs(self, filter: str = "", limit: int | None = None) -> list["Job"]:  # noqa: A002 - the API's word
        """The jobs that match a filter of the API, such as `state:FAILED AND jobId:digits*`; the newest first."""
        return [Job(self._http, job) for job in self._http.list_jobs(filter, limit)]

    def jobs_frame(self, filter: str = "", limit: int | None = None) -> Any:  # noqa: A002 - the API's word
        """The jobs that match a filter as a pandas DataFrame, the newest first, from one request per 100 jobs.

        Columns are job_id, state, owner, created, started, ended, duration_s, params.NAME for each argument,
        metrics.NAME with the last value of each metric, and labels.NAME. Raises ImportError without pandas.
        """
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError("jobs_frame() needs pandas. Install it: pip install pandas") from error
        return pandas.DataFrame(frame.columns(list(self._http.list_jobs(filter, limit, with_results=True))))


def _words(args: object) -> tuple[str, ...]:
    """The arguments of a program: words as they are, flags of a mapping as `--NAME=VALUE`. True is the flag alone,
    False and None leave it out; a list is the flag with each of its values. Raises InvalidArgument."""
    if isinstance(args, Mapping):
        names = {name: str(name) if str(name).startswith("-") else f"--{name}" for name in args}
        return tuple(word for name, value in args.items() for word in _flag(names[name], value))
    if isinstance(args, str | bytes) or not isinstance(args, Iterable):
        raise InvalidArgument(
            f"args must be a list of words, such as ['--lr', 0.1], or a mapping, such as {{'lr': 0.1}}; this is "
            f"{quoted(args)}."
        )
    return tuple(map(str, args))


def _flag(name: str, value: object) -> Iterator[str]:
    if value is None or value is False:
        return
    if value is True:
        yield name
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _flag(name, item)
    elif isinstance(value, Mapping):
        raise InvalidArgument(f"args: the value of {name} is a mapping; a flag has a text or a number.")
    else:
        yield f"{name}={value}"


def _swept(name: str, values: Sequence[object]) -> SweptFlag:
    try:
        return swept(name, list(map(str, values)))
    except ValueError as error:
        raise InvalidArgument(f"The sweep over {name} {error}.") from error


class Job:
    """A job. Each method and property asks the server, except `id`, `address` and `repr`."""

    def __init__(self, connection: http.Client, job: Mapping[str, Any]) -> None:
        self._http = connection
        self._last = JobState(job["state"])
        self.id: str = job["jobId"]

    def __repr__(self) -> str:
        return f"<Job {self.id}, last seen {self._last}>"

    def _repr_html_(self) -> str:
        """The job's state, progress and main curve, for notebooks."""
        try:
            return notebook.html(self.detail(), self.address)
        except TrainyardError as error:
            return notebook.failure(self.id, error.message)

    @property
    def address(self) -> str:
        """The job's page in the dashboard."""
        project = quote(self._http.project, safe="")
        return f"{self._http.server.url}/projects/{project}/jobs/{quote(self.id, safe='')}"

    @property
    def state(self) -> JobState:
        return self.detail().state

    @property
    def error(self) -> str:
        """The reason of a failure or a cancellation; "" otherwise."""
        return str(self.detail().job.get("errorMessage", ""))

    def detail(self) -> JobDetail:
        """Everything that is known of the job: the v1 Job, its verdict, runs, replicas and events."""
        detail = self._http.detail(self.id)
        self._last = detail.state
        return detail

    def wait(self, timeout: float | None = None, *, check: bool = False) -> JobState:
        """Wait until the job has ended and return its state.

        Raises WaitTimeout after `timeout` seconds; with `check` JobFailed unless it has SUCCEEDED.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for pause in chain(_PAUSES_S, repeat(_LONGEST_PAUSE_S)):
            try:
                self._last = JobState(self._http.get_job(self.id, delays=RETRY_DELAYS)["state"])
            except Unavailable as error:  # the job goes on without its server
                logger.warning("%s", error.message)
            if self._last in FINAL_JOB_STATES:
                break
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise WaitTimeout(f"The job {self.id} is still {self._last} after {timeout:g} s. It goes on.")
            time.sleep(min(pause, left))
        if check and self._last is not JobState.SUCCEEDED:
            raise JobFailed(self.detail())
        return self._last

    def logs(
        self, *, follow: bool = True, task: str = "", severity: str = "", since: str = "", search: str = ""
    ) -> Iterator[LogEntry]:
        """Iterate over the lines of its log, with `follow` until the job ends; resumes after a lost connection.

        Filters are those of `jobs stream-logs`: a replica, the least severity, a start time (`10m`), a text.
        """
        for event in self._http.logs(self.id, query=log_query(task, severity, since, search), follow=follow):
            match event:
                case LogEntry():
                    yield event
                case http.StreamLost():
                    logger.warning("Lost the connection to the server (%s). Reconnecting...", event.reason)

    def metrics(self, *names: str, task: str = "", from_step: int | None = None, to_step: int | None = None) -> Metrics:
        """The curves of all metrics, or of these: of this replica, or each of the first one that reports it."""
        replica = task_name(task) if task else ""

        def fetch(first: int | None, last: int | None) -> MetricsView:
            return self._http.metrics(
                self.id, names=names, task=replica, from_step=first, to_step=last, points=metrics.POINTS
            )

        return metrics.read(fetch, from_step, to_step)

    def trials(self, metric: str = "", goal: Literal["", "maximize", "minimize"] = "") -> list[Trial]:
        """The trials of a study, best first: parameters, measurements, state and times; `job_id` is that of the
        trial's own job. `metric` ranks them by another metric that they have reported; `goal` is needed where its name
        does not tell whether it is to be large. Raises FailedPrecondition for another job."""
        return best_first(self._http.trials(self.id, metric, goal))

    def files(self, path: str = "") -> list[FileEntry]:
        """The entries of a directory below its job-dir."""
        return list(self._http.files(self.id, path))

    def download(self, path: str = "", to: StrPath = ".") -> Path:
        """Download a file or a directory below its job-dir, or all of it, into the directory `to`. Returns where it is
        then."""
        name = path.rstrip("/").rpartition("/")[2] or self.id
        if name in (".", ".."):
            raise InvalidArgument(f"{path!r} is no path below the job-dir.")
        target = Path(to).expanduser() / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._http.download(self.id, path, target)
        except (FailedPrecondition, NotFound):  # a directory?
            entries = self.files(path)
            if not entries:
                raise
            for entry in entries:
                if entry.kind == "file" or (entry.kind == "directory" and not entry.is_link):
                    self.download(f"{path}/{entry.name}".lstrip("/"), target)
        return target

    def cancel(self) -> None:
        """Ask its replicas to stop. Does nothing to a job that has ended."""
        self._http.cancel_job(self.id)
