"""The server, as the command line talks to it: one method a call, errors of the shared tree, patience.

A call that found nobody, or a server that is busy, is made again a few times. A log stream goes on after
the last line it has, over as many restarts of the server as there are.
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
    Explanation,
    JobDetail,
    LogEntry,
    LogSummary,
    ServerStatus,
    SignInCode,
    Staged,
    WhyView,
)

_M = TypeVar("_M", bound=BaseModel)

PATIENCE = (0.5, 1.0, 2.0, 4.0)
"""Seconds between the attempts of one call."""

NO_PATIENCE: tuple[float, ...] = ()
LONGEST_PAUSE_S = 5.0
PAGE_SIZE = 100

_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
_STREAM_TIMEOUT = httpx.Timeout(45.0, connect=5.0)  # the server sends something every 15 s
_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class Away:
    """The log stream was cut; the server is being asked again and again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Back:
    """The server answers again; the stream goes on where it was cut."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines of a log: of one replica, of at least a severity, since a moment (RFC 3339), with a text."""

    task: str = ""
    severity: str = ""
    since: str = ""
    search: str = ""

    @property
    def hides(self) -> bool:
        """Whether it leaves out some of a replica's lines, so that what arrives cannot be counted."""
        return bool(self.severity or self.since or self.search)


EVERYTHING = LogQuery()

LogEvent = LogEntry | JobDetail | LogSummary | Away | Back


class Client:
    """Close it, or use it as a context manager. `notify` gets one line when a call must be made again."""

    def __init__(
        self,
        server: Server,
        project: str,
        *,
        patience: Sequence[float] = PATIENCE,
        notify: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        timeout: httpx.Timeout | float = _TIMEOUT,
    ) -> None:
        self.server = server
        self.project = project
        self._patience = tuple(patience)
        self._notify = notify
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=server.url,
            headers={"Authorization": f"Bearer {server.token}"},
            timeout=timeout,
            trust_env=not server.local,  # no proxy between us and the loopback
            verify=server.url.startswith("https://"),  # reading the certificates costs a start 50 ms
        )
        project_path = quote(project, safe="")
        self._jobs = f"/v1/projects/{project_path}/jobs"
        self._ours = f"/trainyard/v1/projects/{project_path}/jobs"
        self._packages = f"/upload/trainyard/v1/projects/{project_path}/packages"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def answers(self) -> bool:
        """Whether a server is there, right now; it may say that it cannot work."""
        try:
            Health.model_validate(self._http.get("/healthz").json())
        except (httpx.TransportError, ValueError):
            return False
        return True

    def validate_job(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The job that `create_job` would make; nothing is created."""
        return _mapping(self._call("POST", self._jobs, params={"validateOnly": "true"}, json=job))

    def create_job(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Submit a job. When an answer was lost on the way, the job that is found there is taken for ours if
        it is the same; otherwise AlreadyExists."""
        lost: list[TrainyardError] = []
        try:
            return _mapping(self._call("POST", self._jobs, json=job, retried=lost.append))
        except AlreadyExists:
            if not lost:
                raise
            found = self.get_job(str(job["jobId"]))
            if found.get("trainingInput") != parse_job(job).canonical()["trainingInput"]:
                raise
            return found

    def get_job(self, job: str) -> dict[str, Any]:
        return _mapping(self._call("GET", f"{self._jobs}/{quote(job, safe='')}"))

    def list_jobs(self, filter_: str = "", limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Every job that matches, page by page, in the server's order."""
        token, left = "", limit
        while left is None or left > 0:
            size = PAGE_SIZE if left is None else min(left, PAGE_SIZE)
            wanted = {"filter": filter_, "pageSize": str(size), "pageToken": token}
            page = _mapping(
                self._call("GET", self._jobs, params={name: value for name, value in wanted.items() if value})
            )
            jobs = page.get("jobs", [])
            yield from jobs
            token = page.get("nextPageToken", "")
            if not token:
                return
            left = None if left is None else left - len(jobs)

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

    def detail(self, job: str) -> JobDetail:
        return self._read(JobDetail, "GET", f"{self._ours}/{quote(job, safe='')}")

    def explain(self, job: str, task: str, run: int | None = None) -> Explanation:
        params = {"task": task, **({"run": str(run)} if run is not None else {})}
        path = f"{self._ours}/{quote(job, safe='')}/explain"
        return self._read(Explanation, "GET", path, params=params)

    def why(self, job: str) -> WhyView:
        return self._read(WhyView, "GET", f"{self._ours}/{quote(job, safe='')}/why")

    def status(self) -> ServerStatus:
        return self._read(ServerStatus, "GET", "/trainyard/v1/status")

    def health(self, deep: bool = False) -> ServerHealth:
        """How the server's parts stand; with `deep` it looks at everything, which takes its time."""
        return self._read(ServerHealth, "GET", "/trainyard/v1/health", params={"deep": str(deep).lower()})

    def mend(self) -> ServerHealth:
        """Has the server mend of itself what it safely can; the findings say what was done."""
        return self._read(ServerHealth, "POST", "/trainyard/v1/health:mend")

    def sign_in_code(self) -> SignInCode:
        """What a browser may sign in with in place of the token, once."""
        return self._read(SignInCode, "POST", "/trainyard/v1/sign-in-codes")

    def upload(self, path: Path) -> Staged:
        """Hand a package to the server; the same file again is the same address."""

        def chunks() -> Iterator[bytes]:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk

        return self._read(Staged, "POST", f"{self._packages}/{quote(path.name, safe='')}", content=chunks)

    def logs(
        self, job: str, *, wanted: LogQuery = EVERYTHING, follow: bool = True
    ) -> Generator[LogEvent, None, None]:
        """The job's log from its first line, each line once; ends with a LogSummary.

        `Away` comes once for each time the server is gone, `Back` when it answers again. Raises what the
        server says when it refuses (NotFound for an unknown job).
        """
        cursor, pause, away = 0, 0.0, False
        while True:
            reason = "it ended the stream"
            try:
                for event in self._stream(job, wanted, follow, cursor):
                    if away:
                        away = False
                        yield Back()
                    pause = 0.0
                    if isinstance(event, LogEntry):
                        if event.cursor <= cursor:
                            continue  # sent again after a cut: we have it
                        cursor = event.cursor
                    yield event
                    if isinstance(event, LogSummary):
                        return
            except Unavailable as error:
                reason = error.message
            except httpx.TransportError as error:
                reason = _reason(error)
            if not away:
                away = True
                yield Away(reason)
            pause = min(max(2 * pause, 0.25), LONGEST_PAUSE_S)
            self._sleep(pause)

    def _stream(
        self, job: str, wanted: LogQuery, follow: bool, cursor: int
    ) -> Iterator[LogEntry | JobDetail | LogSummary]:
        asked = {name: value for name, value in asdict(wanted).items() if value}
        params = {"follow": str(follow).lower(), **asked}
        headers = {"Last-Event-ID": str(cursor)} if cursor else {}
        path = f"{self._ours}/{quote(job, safe='')}/logs"
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
        params: Mapping[str, str] | None = None,
        json: Any = None,
        content: Callable[[], Iterator[bytes]] | None = None,
        retried: Callable[[TrainyardError], None] = lambda _: None,
    ) -> Any:
        for pause in (*self._patience, None):
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
            if pause == self._patience[0]:
                said = failure.message if refused else f"The server at {self.server.url} does not answer."
                self._notify(f"{said} Trying again...")
            retried(failure)
            self._sleep(pause)
        raise AssertionError  # the last pause is None

    def _advice(self) -> str:
        if self.server.local:
            return "`trainyard status` shows what runs here, `trainyard up` starts what does not."
        return "Check --server (or TRAINYARD_SERVER)."


def _decoded(response: httpx.Response, url: str) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise _foreign(url) from error


def _mapping(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise Internal("The server's answer is not what was asked for.")
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
    return Internal(f"What answers at {url} does not talk as a Trainyard server does. Check the address.")


def _reason(error: httpx.TransportError) -> str:
    match error:
        case httpx.ConnectError():
            return "nothing accepts connections there"
        case httpx.TimeoutException():
            return "it took too long"
        case _:
            return "the connection was cut"
