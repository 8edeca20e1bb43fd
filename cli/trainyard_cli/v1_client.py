"""HTTP client of the v1 API: jobs as JSON, errors as `TrainyardError`. It loads no models: short commands start sooner.

A call that the server does not answer, or refuses as Unavailable or TooManyRequests, is retried: for two minutes, in
which a server elsewhere may be restarted. One on this machine that nothing listens for is not coming back by itself.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import quote

import httpx

from trainyard_cli.settings import Server
from trainyard_protocol.errors import (
    AlreadyExists,
    FailedPrecondition,
    Internal,
    NotFound,
    ResourceExhausted,
    TooManyRequests,
    TrainyardError,
    Unauthenticated,
    Unavailable,
    from_body,
    nearest,
)
from trainyard_protocol.net.trust import client_context, tls_failure
from trainyard_protocol.net.warning_headers import WARNING, warnings_of
from trainyard_protocol.service_log import REQUEST_ID

RETRY_DELAYS = (0.5, 1.0, 2.0, 4.0)
"""Seconds between the first attempts of one call. With a server of this machine there are no more."""

PATIENCE_S = 120.0
"""How long a call is tried, by which attempts that hang are bounded too."""

_LONGEST_PAUSE_S = 5.0
_REPORT_S = 10.0  # between two words that it still does not answer

NO_RETRIES: tuple[float, ...] = ()
LONGEST_RETRY_AFTER_S = 60.0
PAGE_SIZE = 100
_CHUNK = 2**20
_MOST_NAMED = 10  # projects in a message
_UNKNOWN_JOB = re.compile(r"(?:Field: name Error: )?The job projects/([^/ ]+)/jobs/(\S+) was not found\.(.*)", re.S)

TIMEOUT = httpx.Timeout(60.0, connect=5.0)


def _silent(_: str) -> None:
    """The default of `notify`."""


class V1Client:
    """Close it, or use it as a context manager, which adds to the refusal of an unknown job what was probably meant.

    `notify` gets a line for each warning of the server, when a call is retried, and every ten seconds while no answer
    comes, then in another thread. `retry_delays`: seconds between the attempts of a call; None: as the server's place
    asks for. `flags` select the same server and project in a command, for messages that name one. `headers` are further
    ones of each request."""

    def __init__(
        self,
        server: Server,
        project: str,
        *,
        retry_delays: Sequence[float] | None = None,
        notify: Callable[[str], None] = _silent,
        sleep: Callable[[float], None] = time.sleep,
        timeout: httpx.Timeout | float = TIMEOUT,
        flags: str = "",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.server = server
        self.project = project
        self.flags = flags
        self._headers = headers
        self._retry_delays = None if retry_delays is None else tuple(retry_delays)
        self._notify = notify
        self._sleep = sleep
        self._timeout = timeout
        # Loading the certificates takes 50 ms.
        self._tls = client_context(server.ca_file) if server.url.startswith("https://") else None
        self._http = httpx.Client(
            base_url=server.url,
            headers={"Authorization": f"Bearer {server.token}", **headers},
            timeout=timeout,
            trust_env=not server.local,  # no proxy for loopback
            verify=self._tls or False,
        )
        project_path = quote(project, safe="")
        self._jobs = f"/v1/projects/{project_path}/jobs"
        self._packages = f"/upload/trainyard/v1/projects/{project_path}/packages"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        try:
            if isinstance(error, NotFound) and (explained := self.explained(error)) is not error:
                raise explained from error
        finally:
            self.close()

    def close(self) -> None:
        self._http.close()

    def answers(self) -> bool:
        """Whether a server answers now, healthy or not."""
        try:
            health = self._http.get("/healthz").json()
        except (httpx.TransportError, ValueError):
            return False
        return isinstance(health, dict) and {"status", "checks"} <= health.keys()

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
            from trainyard_protocol.job.parsing import parse_job

            if existing.get("trainingInput") != parse_job(job).canonical()["trainingInput"]:
                raise
            return existing

    def get_job(self, job: str, *, delays: Sequence[float] | None = None) -> dict[str, Any]:
        """The job as JSON. `delays` replace those of the client: for a caller that asks again by itself."""
        return _mapping(self._call("GET", f"{self._jobs}/{quote(job, safe='')}", delays=delays))

    def list_jobs(
        self, filter_: str = "", limit: int | None = None, *, with_results: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Iterate over the jobs that match, page by page, in the server's order. `with_results`: also with owner,
        duration and metrics."""
        path = f"/trainyard{self._jobs}" if with_results else self._jobs
        token, remaining = "", limit
        while remaining is None or remaining > 0:
            size = PAGE_SIZE if remaining is None else min(remaining, PAGE_SIZE)
            params = {"filter": filter_, "pageSize": str(size), "pageToken": token}
            given = {name: value for name, value in params.items() if value}
            page = _mapping(self._call("GET", path, params=given))
            jobs = page.get("jobs", [])
            yield from jobs
            token = page.get("nextPageToken", "")
            if not token:
                return
            remaining = None if remaining is None else remaining - len(jobs)

    def upload(self, path: Path, job: str = "") -> str:
        """Upload a package and return its address, which is one for the same content. Raises AlreadyExists if job `job`
        exists."""

        def chunks() -> Iterator[bytes]:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk

        params = {"jobId": job} if job else {}
        address = f"{self._packages}/{quote(path.name, safe='')}"
        uri = _mapping(self._call("POST", address, params=params, content=chunks)).get("uri")
        if not isinstance(uri, str):
            raise foreign(self.server.url)
        return uri

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

    def set_origin(self, job: str, origin: Mapping[str, Any]) -> None:
        """Record the origin of a job. Raises AlreadyExists where another one is recorded, NotFound also for a server
        without origins."""
        path = f"/trainyard{self._jobs}/{quote(job, safe='')}/origin"
        self._call("PUT", path, json=origin, delays=RETRY_DELAYS)

    def get_origin(self, job: str) -> dict[str, Any]:
        """The origin of a job, with its diff. Raises NotFound where none is recorded."""
        return _mapping(self._call("GET", f"/trainyard{self._jobs}/{quote(job, safe='')}/origin"))

    def cancel_job(self, job: str) -> None:
        self._call("POST", f"{self._jobs}/{quote(job, safe='')}:cancel", json={})

    def activities(self) -> list[dict[str, Any]]:
        """The jobs of all projects that have not ended, and what they do."""
        return list(_mapping(self._call("GET", "/trainyard/v1/jobs:active")).get("jobs", ()))

    def other_projects(self) -> str:
        """The message for a project that has no jobs and may be mistyped: the others; "" for one that exists."""
        view = _mapping(self._call("GET", "/trainyard/v1/projects"))
        names = [str(entry["project"]) for entry in view.get("projects", ())]
        if self.project in names or not names:
            return ""
        others = ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
        return f"The project {self.project} has no jobs.{_did_you_mean(self.project, names)} Your projects: {others}."

    def explained(self, error: NotFound) -> NotFound:
        """The error about a job that does not exist with the name that was probably meant; any other as it is."""
        unknown = _UNKNOWN_JOB.fullmatch(error.message)
        return NotFound(self._no_such_job(*unknown.groups())) if unknown else error

    def _no_such_job(self, project: str, job: str, deleted: str) -> str:
        """The message for a job that does not exist, with the name that was probably meant."""
        message = f"There is no job {job} in the project {project}.{deleted}"
        if project != self.project:
            return message
        try:
            page = _mapping(self._call("GET", self._jobs, params={"pageSize": str(PAGE_SIZE)}, retry=False))
            names = [str(other["jobId"]) for other in page.get("jobs", ())]
            hint = _did_you_mean(job, names) if names else f" {self.other_projects()}".rstrip()
        except TrainyardError:  # the caller may not list jobs, or the server is gone: the answer about the job stands
            return message
        return message + hint

    def _delete(self, path: str) -> None:
        lost: list[TrainyardError] = []
        try:
            self._call("DELETE", path, retried=lost.append)
        except NotFound:
            if not lost:
                raise

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | list[str]] | None = None,
        json: Any = None,
        content: Callable[[], Iterator[bytes]] | None = None,
        retried: Callable[[TrainyardError], None] = lambda _: None,
        retry: bool = True,
        delays: Sequence[float] | None = None,
    ) -> Any:
        """`retried` gets each failure after which the server may have done what was asked."""
        tries = _Tries((delays or self._retry_delays) if retry else NO_RETRIES)
        while True:
            at_home = self.server.local
            try:
                with self._saying_that_it_waits(tries):
                    response = self._http.request(
                        method,
                        path,
                        params=params,
                        json=json,
                        content=content() if content else None,
                        timeout=tries.bounded(self._http.timeout),
                    )
                if response.is_success:
                    for text in warnings_of(response.headers.get_list(WARNING)):
                        self._notify(f"Note: {text}")
                    return _decoded(response, self.server.url)
                failure, refused = error_of(response), True
            except httpx.TransportError as error:
                self._check_tls(error)
                refused = False
                at_home = at_home or (self.server.is_loopback and isinstance(error, httpx.ConnectError))
                failure = Unavailable(
                    f"The server at {self.server.url} does not answer: {reason_of(error)}. {self._advice()}"
                )
            pause = tries.pause(at_home)
            if pause is None or not isinstance(failure, Unavailable | TooManyRequests):
                raise failure
            limited = isinstance(failure, TooManyRequests)
            if not (limited and not tries.slept_s) and tries.is_report_due():  # the first wait for a limit is short
                reason = failure.message if refused else f"The server at {self.server.url} does not answer."
                self._notify(f"{reason} {tries.going_on(at_home)}")
            if not limited:
                retried(failure)
            pause = max(pause, wait_after(failure))
            tries.slept_s += pause
            self._sleep(pause)

    @contextmanager
    def _saying_that_it_waits(self, tries: "_Tries") -> Iterator[None]:
        """Say every ten seconds that the server does not answer, until it does."""
        if self._notify is _silent:
            yield
            return
        answered = threading.Event()

        def remind() -> None:
            while not answered.wait(_REPORT_S):
                if tries.is_report_due():
                    self._notify(f"The server at {self.server.url} does not answer. {tries.waiting}")

        threading.Thread(target=remind, name="waits", daemon=True).start()
        try:
            yield
        finally:
            answered.set()

    def _check_tls(self, error: httpx.TransportError) -> None:
        """Raises FailedPrecondition if it is about TLS, which trying again does not mend."""
        if failure := tls_failure(error, self.server.url, self.server.ca_file):
            raise FailedPrecondition(failure) from error

    def _advice(self) -> str:
        if self.server.local:
            return "`trainyard doctor` shows what is wrong; `trainyard up` starts what does not run."
        return "Check --server (or TRAINYARD_SERVER)."


class _Tries:
    """Attempts of one call. `slept_s` is the sum of the pauses between them."""

    def __init__(self, delays: Sequence[float] | None) -> None:
        self._delays = delays
        self._begun_at = time.monotonic()
        self._number = 0
        self._reported_s: float | None = None
        self._notices = 0
        self.slept_s = 0.0

    @property
    def _elapsed_s(self) -> float:
        return max(self.slept_s, time.monotonic() - self._begun_at)

    def pause(self, at_home: bool) -> float | None:
        """Seconds until the next attempt; None: there is none. `at_home`: the server is one of this machine."""
        number, self._number = self._number, self._number + 1
        delays = RETRY_DELAYS if self._delays is None else self._delays
        is_last = number >= len(delays)
        pause = _LONGEST_PAUSE_S if is_last else delays[number]
        if (is_last and (self._delays is not None or at_home)) or self._elapsed_s + pause > PATIENCE_S:
            return None
        return pause

    def bounded(self, timeout: httpx.Timeout) -> httpx.Timeout:
        """The timeout of the next attempt: no answer is waited for beyond the end."""
        left_s = max(_LONGEST_PAUSE_S, PATIENCE_S - self._elapsed_s)
        read_s = left_s if timeout.read is None else min(timeout.read, left_s)
        return httpx.Timeout(connect=timeout.connect, read=read_s, write=timeout.write, pool=timeout.pool)

    def is_report_due(self) -> bool:
        """Whether to say now that the call goes on. If so, the next word is due ten seconds later."""
        if self._reported_s is not None and self._elapsed_s - self._reported_s < _REPORT_S:
            return False
        self._reported_s = self._elapsed_s
        self._notices += 1
        return True

    @property
    def waiting(self) -> str:
        return f"Still waiting after {self._elapsed_s:.0f} s; Ctrl-C ends it."

    def going_on(self, at_home: bool) -> str:
        if self._delays is not None or at_home:
            return "Trying again..."
        if self._notices == 1:
            return f"Trying again for {PATIENCE_S / 60:.0f} minutes; Ctrl-C ends it."
        return f"Still trying after {self._elapsed_s:.0f} s..."


def _did_you_mean(name: str, names: Sequence[str]) -> str:
    near = nearest(name, names)
    return f" Did you mean {near}?" if near else ""


def _decoded(response: httpx.Response, url: str) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise foreign(url) from error


def _mapping(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise Internal("The server's answer is not a JSON object.")
    return answer


def error_of(response: httpx.Response) -> TrainyardError:
    try:
        body = response.json()
    except ValueError:
        body = None
    error = from_body(response.status_code, body)
    if isinstance(error, ResourceExhausted) and "WWW-Authenticate" in response.headers:
        return Unauthenticated(error.message)  # too many wrong tokens; this one was wrong, too
    if isinstance(error, ResourceExhausted) and (after := response.headers.get("Retry-After", "")).isdecimal():
        return TooManyRequests(error.message, int(after))
    if body is None and isinstance(error, NotFound):
        return foreign(str(response.url.join("/")))
    if (identifier := response.headers.get(REQUEST_ID, "")) and isinstance(error, Internal | Unavailable):
        return type(error)(f"{error.message} (request {identifier[:64]}, as in the server's log)")
    return error


def wait_after(error: TrainyardError) -> float:
    """Seconds that the server asks to wait; 0 if it does not say."""
    return min(error.retry_after_s, LONGEST_RETRY_AFTER_S) if isinstance(error, TooManyRequests) else 0.0


def foreign(url: str) -> Internal:
    return Internal(f"The server at {url} is not a Trainyard server. Check the address.")


def reason_of(error: httpx.TransportError) -> str:
    match error:
        case httpx.ConnectError():
            return "nothing accepts connections there"
        case httpx.TimeoutException():
            return "it took too long"
        case _:
            return "the connection was cut"
