"""HTTP client of the server: one method a call, errors as `TrainyardError`.

A call that the server does not answer, or refuses as Unavailable, is retried. A log stream resumes after its last
line as often as it is cut.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import httpx_sse
from pydantic import BaseModel, ValidationError

from trainyard_cli.settings import Server
from trainyard_protocol.errors import (
    AlreadyExists,
    Internal,
    NotFound,
    TrainyardError,
    Unavailable,
    from_body,
)
from trainyard_protocol.health import Health, ServerHealth
from trainyard_protocol.training_input import parse_job
from trainyard_protocol.views import (
    ActiveJobsView,
    Explanation,
    FileEntry,
    FileListing,
    JobDetail,
    LogEntry,
    LogSummary,
    MetricsView,
    QueueExplanationView,
    QuotasView,
    ServerStatus,
    SignInCode,
    Staged,
)

_M = TypeVar("_M", bound=BaseModel)

RETRY_DELAYS = (0.5, 1.0, 2.0, 4.0)
"""Seconds between the attempts of one call."""

NO_RETRIES: tuple[float, ...] = ()
LONGEST_PAUSE_S = 5.0
PAGE_SIZE = 100

_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
_STREAM_TIMEOUT = httpx.Timeout(45.0, connect=5.0)  # the server sends something every 15 s
_CHUNK = 2**20
_INCOMPLETE_PAUSE_S = 0.05  # the server reads the next part of the log for each request


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The log stream was cut; reconnecting."""

    reason: str


@dataclass(frozen=True, slots=True)
class StreamResumed:
    """Reconnected; the stream continues where it was cut."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Filter of log lines: replica, lowest severity, start time (RFC 3339), text."""

    task: str = ""
    severity: str = ""
    since: str = ""
    search: str = ""

    @property
    def partial(self) -> bool:
        """Whether it may leave out lines of a replica, so that the lines received prove nothing."""
        return bool(self.severity or self.since or self.search)


ALL_LINES = LogQuery()

LogEvent = LogEntry | JobDetail | LogSummary | StreamLost | StreamResumed


class Client:
    """Close it, or use it as a context manager. `notify` gets one line when a call is retried."""

    def __init__(
        self,
        server: Server,
        project: str,
        *,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        notify: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        timeout: httpx.Timeout | float = _TIMEOUT,
    ) -> None:
        self.server = server
        self.project = project
        self._retry_delays = tuple(retry_delays)
        self._notify = notify
        self._sleep = sleep
        self._timeout = timeout
        self._http = httpx.Client(
            base_url=server.url,
            headers={"Authorization": f"Bearer {server.token}"},
            timeout=timeout,
            trust_env=not server.local,  # no proxy for loopback
            verify=server.url.startswith("https://"),  # loading the certificates takes 50 ms
        )
        project_path = quote(project, safe="")
        self._jobs = f"/v1/projects/{project_path}/jobs"
        self._extensions = f"/trainyard/v1/projects/{project_path}/jobs"
        self._packages = f"/upload/trainyard/v1/projects/{project_path}/packages"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def another(self) -> "Client":
        """A second client of the same server, for another thread."""
        return Client(
            self.server,
            self.project,
            retry_delays=self._retry_delays,
            notify=self._notify,
            timeout=self._timeout,
        )

    def answers(self) -> bool:
        """Whether a server answers now, healthy or not."""
        try:
            Health.model_validate(self._http.get("/healthz").json())
        except (httpx.TransportError, ValueError):
            return False
        return True

    def validate_job(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the job that `create_job` would create, without creating it."""
        return _mapping(self._call("POST", self._jobs, params={"validateOnly": "true"}, json=job))

    def create_job(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Submit a job. Raises AlreadyExists; after a retry only when the existing job has another training input."""
        lost: list[TrainyardError] = []
        try:
            return _mapping(self._call("POST", self._jobs, json=job, retried=lost.append))
        except AlreadyExists:
            if not lost:
                raise
            existing = self.get_job(str(job["jobId"]))
            if existing.get("trainingInput") != parse_job(job).canonical()["trainingInput"]:
                raise
            return existing

    def get_job(self, job: str) -> dict[str, Any]:
        return _mapping(self._call("GET", f"{self._jobs}/{quote(job, safe='')}"))

    def list_jobs(self, filter_: str = "", limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Iterate over the jobs that match, page by page, in the server's order."""
        token, remaining = "", limit
        while remaining is None or remaining > 0:
            size = PAGE_SIZE if remaining is None else min(remaining, PAGE_SIZE)
            params = {"filter": filter_, "pageSize": str(size), "pageToken": token}
            page = _mapping(
                self._call("GET", self._jobs, params={name: value for name, value in params.items() if value})
            )
            jobs = page.get("jobs", [])
            yield from jobs
            token = page.get("nextPageToken", "")
            if not token:
                return
            remaining = None if remaining is None else remaining - len(jobs)

    def patch_labels(self, job: str, labels: Mapping[str, str], etag: str) -> dict[str, Any]:
        """Replace all labels. Raises Aborted when the job has changed since `etag` was read."""
        return _mapping(
            self._call(
                "PATCH",
                f"{self._jobs}/{quote(job, safe='')}",
                params={"updateMask": "labels,etag" if etag else "labels"},
                json={"labels": dict(labels), **({"etag": etag} if etag else {})},
            )
        )

    def cancel_job(self, job: str) -> None:
        self._call("POST", f"{self._jobs}/{quote(job, safe='')}:cancel", json={})

    def delete_job(self, job: str) -> None:
        """Delete a job that has ended. Raises NotFound, unless an earlier attempt of this call has deleted it."""
        lost: list[TrainyardError] = []
        try:
            self._call("DELETE", f"{self._extensions}/{quote(job, safe='')}", retried=lost.append)
        except NotFound:
            if not lost:
                raise

    def detail(self, job: str) -> JobDetail:
        return self._read(JobDetail, "GET", f"{self._extensions}/{quote(job, safe='')}")

    def explain(self, job: str, task: str, run: int | None = None) -> Explanation:
        params = {"task": task, **({"run": str(run)} if run is not None else {})}
        path = f"{self._extensions}/{quote(job, safe='')}/explain"
        return self._read(Explanation, "GET", path, params=params)

    def why(self, job: str) -> QueueExplanationView:
        return self._read(QueueExplanationView, "GET", f"{self._extensions}/{quote(job, safe='')}/why")

    def metrics(
        self,
        job: str,
        *,
        names: Sequence[str] = (),
        task: str = "",
        from_step: int | None = None,
        to_step: int | None = None,
        points: int,
    ) -> MetricsView:
        """The job's curves between two steps, each with at most `points` points; waits until the server has read its
        whole log."""
        params: dict[str, Any] = {"name": list(names), "task": task, "points": str(points)}
        ends = {"from_step": from_step, "to_step": to_step}
        params |= {name: str(step) for name, step in ends.items() if step is not None}
        path = f"{self._extensions}/{quote(job, safe='')}/metrics"
        while not (view := self._read(MetricsView, "GET", path, params=params)).complete:
            self._sleep(_INCOMPLETE_PAUSE_S)
        return view

    def files(self, job: str, path: str = "") -> Iterator[FileEntry]:
        """Iterate over a directory below the job-dir, page by page."""
        token = ""
        while True:
            params = {name: value for name, value in (("path", path), ("pageToken", token)) if value}
            address = f"{self._extensions}/{quote(job, safe='')}/files"
            page = self._read(FileListing, "GET", address, params=params)
            yield from page.entries
            token = page.next_page_token
            if not token:
                return

    def download(self, job: str, path: str, to: Path) -> None:
        """Download a file below the job-dir. `to` appears when it is complete."""
        part = to.with_name(f".{to.name}.part")
        address = f"{self._extensions}/{quote(job, safe='')}/files/content"
        try:
            with self._http.stream("GET", address, params={"path": path}) as response:
                if not response.is_success:
                    response.read()
                    raise _error(response)
                with part.open("wb") as file:
                    for chunk in response.iter_bytes(_CHUNK):
                        file.write(chunk)
            part.replace(to)
        except httpx.TransportError as error:
            raise Unavailable(f"{path} was not downloaded: {_reason(error)}. Try again.") from error
        finally:
            part.unlink(missing_ok=True)

    def active_jobs(self) -> ActiveJobsView:
        """The jobs of all projects that have not ended."""
        return self._read(ActiveJobsView, "GET", "/trainyard/v1/jobs:active")

    def status(self) -> ServerStatus:
        return self._read(ServerStatus, "GET", "/trainyard/v1/status")

    def health(self, deep: bool = False) -> ServerHealth:
        """State of the server's parts. `deep` checks all stored data, which can take minutes."""
        return self._read(ServerHealth, "GET", "/trainyard/v1/health", params={"deep": str(deep).lower()})

    def repair(self) -> ServerHealth:
        """Have the server repair its own data where that is safe; the findings list the repairs."""
        return self._read(ServerHealth, "POST", "/trainyard/v1/health:mend")

    def reload_quotas(self) -> QuotasView:
        """Have the server read its quota file again. Raises InvalidArgument with its mistake; the old quotas stay."""
        return self._read(QuotasView, "POST", "/trainyard/v1/quotas:reload")

    def sign_in_code(self) -> SignInCode:
        """A one-time code for signing in with a browser."""
        return self._read(SignInCode, "POST", "/trainyard/v1/sign-in-codes")

    def upload(self, path: Path, job: str = "") -> Staged:
        """Upload a package; the same content has the same address. Raises AlreadyExists if job `job` exists."""

        def chunks() -> Iterator[bytes]:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk

        params = {"jobId": job} if job else {}
        address = f"{self._packages}/{quote(path.name, safe='')}"
        return self._read(Staged, "POST", address, params=params, content=chunks)

    def logs(
        self, job: str, *, query: LogQuery = ALL_LINES, follow: bool = True, with_lines: bool = True
    ) -> Generator[LogEvent, None, None]:
        """Iterate over the job's log from its first line, each line once; ends with a LogSummary. A JobDetail comes
        first and after each change of the job's state; without `with_lines` there are no lines between them.

        StreamLost comes once for each loss of the connection, StreamResumed after it. Raises the server's refusal
        (NotFound for an unknown job).
        """
        cursor, pause, lost = 0, 0.0, False
        while True:
            reason = "it ended the stream"
            try:
                for event in self._stream(job, query, follow, cursor, with_lines):
                    if lost:
                        lost = False
                        yield StreamResumed()
                    pause = 0.0
                    if isinstance(event, LogEntry):
                        if event.cursor <= cursor:
                            continue  # a repetition after a reconnection
                        cursor = event.cursor
                    yield event
                    if isinstance(event, LogSummary):
                        return
            except Unavailable as error:
                reason = error.message
            except httpx.TransportError as error:
                reason = _reason(error)
            if not lost:
                lost = True
                yield StreamLost(reason)
            pause = min(max(2 * pause, 0.25), LONGEST_PAUSE_S)
            self._sleep(pause)

    def _stream(
        self, job: str, query: LogQuery, follow: bool, cursor: int, with_lines: bool
    ) -> Iterator[LogEntry | JobDetail | LogSummary]:
        filters = {name: value for name, value in asdict(query).items() if value}
        params = {"follow": str(follow).lower(), **({} if with_lines else {"lines": "false"}), **filters}
        headers = {"Last-Event-ID": str(cursor)} if cursor else {}
        path = f"{self._extensions}/{quote(job, safe='')}/logs"
        with httpx_sse.connect_sse(
            self._http, "GET", path, params=params, headers=headers, timeout=_STREAM_TIMEOUT
        ) as source:
            if not source.response.is_success:
                source.response.read()
                raise _error(source.response)
            try:
                for sse in source.iter_sse():
                    match sse.event:
                        case "log":
                            yield LogEntry.model_validate_json(sse.data)
                        case "job":
                            yield JobDetail.model_validate_json(sse.data)
                        case "end":
                            yield LogSummary.model_validate_json(sse.data)
            except (httpx_sse.SSEError, ValidationError) as error:
                raise _foreign(self.server.url) from error

    def _read(self, kind: type[_M], method: str, path: str, **options: Any) -> _M:
        try:
            return kind.model_validate(self._call(method, path, **options))
        except ValidationError as error:
            raise _foreign(self.server.url) from error

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | list[str]] | None = None,
        json: Any = None,
        content: Callable[[], Iterator[bytes]] | None = None,
        retried: Callable[[TrainyardError], None] = lambda _: None,
    ) -> Any:
        for pause in (*self._retry_delays, None):
            try:
                response = self._http.request(
                    method, path, params=params, json=json, content=content() if content else None
                )
                if response.is_success:
                    return _decoded(response, self.server.url)
                failure, refused = _error(response), True
            except httpx.TransportError as error:
                refused = False
                failure = Unavailable(
                    f"The server at {self.server.url} does not answer: {_reason(error)}. {self._advice()}"
                )
            if pause is None or not isinstance(failure, Unavailable):
                raise failure
            if pause == self._retry_delays[0]:
                reason = failure.message if refused else f"The server at {self.server.url} does not answer."
                self._notify(f"{reason} Trying again...")
            retried(failure)
            self._sleep(pause)
        raise AssertionError  # the last pause is None

    def _advice(self) -> str:
        if self.server.local:
            return "`trainyard status` shows which processes run; `trainyard up` starts the missing ones."
        return "Check --server (or TRAINYARD_SERVER)."


def _decoded(response: httpx.Response, url: str) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise _foreign(url) from error


def _mapping(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise Internal("The server's answer is not a JSON object.")
    return answer


def _error(response: httpx.Response) -> TrainyardError:
    try:
        body = response.json()
    except ValueError:
        body = None
    error = from_body(response.status_code, body)
    if body is None and isinstance(error, NotFound):
        return _foreign(str(response.url.join("/")))
    return error


def _foreign(url: str) -> Internal:
    return Internal(f"The server at {url} is not a Trainyard server. Check the address.")


def _reason(error: httpx.TransportError) -> str:
    match error:
        case httpx.ConnectError():
            return "nothing accepts connections there"
        case httpx.TimeoutException():
            return "it took too long"
        case _:
            return "the connection was cut"
