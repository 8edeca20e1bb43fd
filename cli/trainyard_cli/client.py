"""HTTP client of the server: one method a call, errors as `TrainyardError`.

A call that the server does not answer, or refuses as Unavailable or TooManyRequests, is retried. A log stream resumes
after its last line as often as it is cut.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import httpx
import httpx_sse
from pydantic import BaseModel, ValidationError

from trainyard_cli.settings import Server
from trainyard_cli.v1_client import RETRY_DELAYS, V1Client, error_of, foreign, reason_of, wait_after
from trainyard_protocol import answers
from trainyard_protocol.errors import TooManyRequests, TrainyardError, Unavailable, from_body

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from trainyard_protocol.net.sockets import SocketRefused
    from trainyard_protocol.wire.attachments import AttachReceipt, AttachRequest

_M = TypeVar("_M", bound=BaseModel)

LONGEST_PAUSE_S = 5.0

_STREAM_TIMEOUT = httpx.Timeout(45.0, connect=5.0)  # the server sends something every 15 s
_DETACH_S = 5.0
_AWAY = (502, 503, 504)
_BACKUP_TIMEOUT = httpx.Timeout(900.0, connect=5.0)  # the server copies its database first
_CHUNK = 2**20
_AUDIT_PAGE = 1000
_TOKENS = "/trainyard/v1/tokens"
_GOOGLE_KEYS = "/trainyard/v1/google-keys"
_PROJECTS = "/trainyard/v1/projects"
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


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Filter of rows of the audit; "" filters nothing. Times are RFC 3339 or ages such as 2h."""

    project: str = ""
    actor: str = ""
    action: str = ""
    since: str = ""
    until: str = ""


ALL_LINES = LogQuery()

if TYPE_CHECKING:
    _Change = answers.jobs.JobDetail | answers.log_views.LogSummary | StreamLost | StreamResumed
    LogEvent = answers.log_views.LogEntry | _Change
    LogBatchEvent = tuple[answers.log_views.LogEntry, ...] | _Change


class Client(V1Client):
    """Client of the whole API, with its answers as models."""

    def __init__(self, server: Server, project: str, **given: Any) -> None:
        """See `V1Client`."""
        super().__init__(server, project, **given)
        project_path = quote(project, safe="")
        self._extensions = f"/trainyard/v1/projects/{project_path}/jobs"
        self._secrets = f"{_PROJECTS}/{project_path}/secrets"
        self._channels = f"{_PROJECTS}/{project_path}/channels"
        self._notifications = f"{_PROJECTS}/{project_path}/notifications"

    def another(self) -> Client:
        """A second client of the same server, for another thread."""
        return Client(
            self.server,
            self.project,
            retry_delays=self._retry_delays,
            notify=self._notify,
            timeout=self._timeout,
            headers=self._headers,
        )

    def delete_job(self, job: str) -> None:
        """Delete a job that has ended. Raises NotFound, unless an earlier attempt of this call has deleted it."""
        self._delete(self._of_job(job))

    def detail(self, job: str) -> answers.jobs.JobDetail:
        return self._read(answers.jobs.JobDetail, "GET", self._of_job(job))

    def set_note(self, job: str, note: str) -> None:
        """Replace the note about a job; "" removes it."""
        self._read(answers.experiments.JobNote, "PUT", self._of_job(job, "/note"), json={"note": note})

    def attach(self, job: str, request: AttachRequest) -> AttachReceipt:
        """Create an attachment to a replica. Raises FailedPrecondition for one that does not run."""
        from trainyard_protocol.wire.attachments import AttachReceipt

        return self._read(
            AttachReceipt,
            "POST",
            self._of_job(job, "/attachments"),
            json=request.model_dump(mode="json", exclude_defaults=True),
        )

    def detach(self, attachment_id: str) -> None:
        """End an attachment, also one whose streams are full. Without an answer the server ends it when it is idle."""
        with contextlib.suppress(httpx.TransportError):
            self._http.delete(f"/trainyard/v1/attachments/{attachment_id}", timeout=_DETACH_S)

    def open_stream(self, attachment_id: str, stream: int) -> ClientConnection:
        """A stream of an attachment, for threads; its user closes it. Raises Unavailable, and what the server
        refuses."""
        from trainyard_protocol.net.sockets import SocketRefused, open_socket
        from trainyard_protocol.wire.attachments import MOST_MESSAGE

        server = self.server
        try:
            return open_socket(
                f"{server.url}/trainyard/v1/attachments/{attachment_id}/streams/{stream}",
                {"Authorization": f"Bearer {server.token}"},
                self._tls,
                proxy=None if server.local else True,
                most_bytes=MOST_MESSAGE,
            )
        except SocketRefused as error:
            raise _not_opened(error, server.url) from error

    def explain(self, job: str, task: str, run: int | None = None) -> answers.jobs.Explanation:
        params = {"task": task, **({"run": str(run)} if run is not None else {})}
        return self._read(answers.jobs.Explanation, "GET", self._of_job(job, "/explain"), params=params)

    def trials(self, study: str, metric: str = "", goal: str = "") -> answers.tuning.StudyView:
        """A study with all its trials, with the values of its metric or of another one. Raises FailedPrecondition for
        another job, InvalidArgument for a metric that no trial has reported."""
        params = _given(metric=metric, goal=goal)
        return self._read(answers.tuning.StudyView, "GET", self._of_job(study, "/trials"), params=params)

    def dependencies(self, job: str) -> answers.dependencies.DependenciesView:
        """The jobs that a job starts after, and those that start after it."""
        return self._read(answers.dependencies.DependenciesView, "GET", self._of_job(job, "/dependencies"))

    def why(self, job: str) -> answers.why.QueueExplanationView:
        return self._read(answers.why.QueueExplanationView, "GET", self._of_job(job, "/why"))

    def metrics(
        self,
        job: str,
        *,
        names: Sequence[str] = (),
        task: str = "",
        from_step: int | None = None,
        to_step: int | None = None,
        points: int,
    ) -> answers.metrics.MetricsView:
        """The job's curves between two steps, each with at most `points` points; waits until the server has read its
        whole log."""
        params: dict[str, Any] = {"name": list(names), "task": task, "points": str(points)}
        ends = {"from_step": from_step, "to_step": to_step}
        params |= {name: str(step) for name, step in ends.items() if step is not None}
        path = self._of_job(job, "/metrics")
        while not (view := self._read(answers.metrics.MetricsView, "GET", path, params=params)).complete:
            self._sleep(_INCOMPLETE_PAUSE_S)
        return view

    def comparison(self, jobs: Sequence[str], metric: str = "") -> answers.comparison.ComparisonView:
        """Jobs of the project beside each other, judged by a metric or by the most important one."""
        params = _given(job=[f"{self.project}/{job}" for job in jobs], metric=metric)
        return self._read(answers.comparison.ComparisonView, "GET", "/trainyard/v1/jobs:compare", params=params)

    def check_config(self, request: answers.configs.ConfigCheckRequest) -> answers.configs.ConfigCheck:
        """The result of a submission, with its replicas and its place in the queue, without creating the job."""
        path = f"{_PROJECTS}/{quote(self.project, safe='')}/configs:check"
        return self._read(
            answers.configs.ConfigCheck, "POST", path, json=request.model_dump(mode="json", by_alias=True)
        )

    def log_page(
        self, job: str, *, query: LogQuery = ALL_LINES, before: int | None = None, after: int | None = None, limit: int
    ) -> answers.log_views.LogPageView:
        """The last lines before a cursor or the first ones after it; with neither the last lines of the log."""
        params = _given(**asdict(query))
        params |= {name: str(cursor) for name, cursor in (("before", before), ("after", after)) if cursor is not None}
        return self._read(
            answers.log_views.LogPageView,
            "GET",
            self._of_job(job, "/logs/page"),
            params={**params, "limit": str(limit)},
        )

    def files(self, job: str, path: str = "") -> Iterator[answers.files.FileEntry]:
        """Iterate over a directory below the job-dir, page by page."""
        token = ""
        while True:
            params = _given(path=path, pageToken=token)
            page = self._read(answers.files.FileListing, "GET", self._of_job(job, "/files"), params=params)
            yield from page.entries
            token = page.next_page_token
            if not token:
                return

    def file(self, job: str, path: str) -> answers.files.FileEntry:
        """The file or directory at a path below the job-dir. Raises NotFound."""
        return self._read(answers.files.FileEntry, "GET", self._of_job(job, "/files/entry"), params={"path": path})

    def download(self, job: str, path: str, to: Path, progress: Callable[[int], None] = lambda _: None) -> None:
        """Download a file below the job-dir. `to` appears when it is complete; `progress` gets the length of each part.
        A download that is cut or refused for the moment is begun again, a few times."""
        address = self._of_job(job, "/files/content")
        received = 0

        def count(length: int) -> None:
            nonlocal received
            received += length
            progress(length)

        for pause in (*RETRY_DELAYS, None):
            try:
                self._download(address, {"path": path}, path, to, count)
                break
            except (Unavailable, TooManyRequests) as error:
                if pause is None:
                    raise
                progress(-received)
                received = 0
                self._sleep(max(pause, wait_after(error)))

    def download_package(self, job: str, sha256: str, filename: str, to: Path) -> None:
        """Download a package of a job that was uploaded to the server. Raises NotFound."""
        address = self._of_job(job, f"/packages/{sha256}/{quote(filename, safe='')}")
        self._download(address, {}, filename, to)

    def _download(
        self,
        address: str,
        params: Mapping[str, str],
        what: str,
        to: Path,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        part = to.with_name(f".{to.name}.part")
        try:
            with self._http.stream("GET", address, params=params) as response:
                if not response.is_success:
                    response.read()
                    raise error_of(response)
                with part.open("wb") as file:
                    for chunk in response.iter_bytes(_CHUNK):
                        file.write(chunk)
                        progress(len(chunk))
            part.replace(to)
        except httpx.TransportError as error:
            self._check_tls(error)
            raise Unavailable(f"{what} was not downloaded: {reason_of(error)}. Try again.") from error
        finally:
            part.unlink(missing_ok=True)

    def status(self) -> answers.cluster.ServerStatus:
        return self._read(answers.cluster.ServerStatus, "GET", "/trainyard/v1/status")

    def health(self, deep: bool = False) -> answers.health.ServerHealth:
        """State of the server's parts. `deep` checks all stored data, which can take minutes."""
        return self._read(
            answers.health.ServerHealth, "GET", "/trainyard/v1/health", params={"deep": str(deep).lower()}
        )

    def debug_state(self) -> answers.operating.debugging.DebugState:
        """Versions, settings and the last lines of the server's log, for operators."""
        return self._read(answers.operating.debugging.DebugState, "GET", "/trainyard/v1/debug")

    def backup(self) -> Iterator[bytes]:
        """Everything that the server stores, as an archive. Raises Unavailable where it ends early."""
        try:
            with self._http.stream("POST", "/trainyard/v1/backups", timeout=_BACKUP_TIMEOUT) as response:
                if not response.is_success:
                    response.read()
                    raise error_of(response)
                yield from response.iter_bytes(_CHUNK)
        except httpx.TransportError as error:
            self._check_tls(error)
            raise Unavailable(f"The backup was not received to its end: {reason_of(error)}. Try again.") from error

    def examination(self) -> answers.stored.backups.ExaminationView:
        """Have the server read all that it stores, and compare it with its digests. It may be minutes."""
        return self._read(answers.stored.backups.ExaminationView, "GET", "/trainyard/v1/examination")

    def reload_quotas(self) -> answers.cluster.QuotasView:
        """Have the server read its quota file again. Raises InvalidArgument with its mistake; the old quotas stay."""
        return self._read(answers.cluster.QuotasView, "POST", "/trainyard/v1/quotas:reload")

    def sign_in_code(self) -> answers.people.SignInCode:
        """A one-time code for signing in with a browser."""
        return self._read(answers.people.SignInCode, "POST", "/trainyard/v1/sign-in-codes")

    def me(self) -> answers.people.Me:
        """The owner of the token, with its roles."""
        return self._read(answers.people.Me, "GET", "/trainyard/v1/me")

    def tokens(self, *, everybody: bool = False) -> answers.people.TokensView:
        """One's own tokens, or everybody's for an operator."""
        return self._read(answers.people.TokensView, "GET", _TOKENS, params={"all": str(everybody).lower()})

    def create_token(self, request: answers.people.TokenRequest) -> answers.people.NewToken:
        """Make a token. It is not tried again: an answer that is lost leaves a token that nobody knows."""
        return self._read(answers.people.NewToken, "POST", _TOKENS, json=request.model_dump(), retry=False)

    def made_with(self, token_id: str) -> answers.people.MadeTokens:
        """The valid tokens that were made with a token, and with those."""
        return self._read(answers.people.MadeTokens, "GET", f"{_TOKENS}/{quote(token_id, safe='')}/made")

    def revoke_token(self, token_id: str, *, recursive: bool = False) -> answers.people.RevokedToken:
        """Revoke a token; with `recursive` also what was made with it."""
        params = _given(recursive="true" if recursive else "")
        return self._read(answers.people.RevokedToken, "DELETE", f"{_TOKENS}/{quote(token_id, safe='')}", params=params)

    def create_google_key(self) -> answers.google.GoogleKey:
        """Make a key for Google's clients. Not tried again, as a token is not."""
        return self._read(answers.google.GoogleKey, "POST", _GOOGLE_KEYS, retry=False)

    def revoke_google_key(self, number: str) -> None:
        self._call("DELETE", f"{_GOOGLE_KEYS}/{quote(number, safe='')}")

    def drain_agent(self, agent: str, *, draining: bool) -> answers.agents.AgentsView:
        """Give the agents of that name or id no new run, or again."""
        change = answers.agents.AgentChange(draining=draining).model_dump()
        return self._read(answers.agents.AgentsView, "PATCH", _agent(agent), json=change)

    def evict_agent(self, agent: str) -> answers.agents.AgentsView:
        """Give the agent of that name or id no new run, and move its runs."""
        return self._read(answers.agents.AgentsView, "POST", f"{_agent(agent)}:evict")

    def remove_agent(self, agent: str) -> answers.agents.AgentsView:
        """Forget the agents of that name or id. It is not tried again: the first attempt may have succeeded."""
        return self._read(answers.agents.AgentsView, "DELETE", _agent(agent), retry=False)

    def projects(self) -> answers.people.ProjectsView:
        """The projects that the caller sees."""
        return self._read(answers.people.ProjectsView, "GET", _PROJECTS)

    def members(self, project: str) -> answers.people.MembersView:
        return self._read(answers.people.MembersView, "GET", f"{_PROJECTS}/{quote(project, safe='')}/members")

    def set_role(self, project: str, name: str, role: answers.people.PersonRole) -> answers.people.MemberView:
        """Give a person a role in the project; `*` is all projects."""
        request = answers.people.MemberRequest(role=role).model_dump()
        return self._read(answers.people.MemberView, "PUT", _member(project, name), json=request)

    def remove_role(self, project: str, name: str) -> None:
        """Take a person's role away. Raises NotFound, unless an earlier attempt of this call has."""
        self._delete(_member(project, name))

    def audit(self, query: AuditFilter, limit: int) -> Iterator[answers.audit.AuditEntry]:
        """Iterate over the rows that match, the newest first, page by page. `limit`: about so many are needed."""
        token = ""
        while True:
            params = _given(**asdict(query), pageSize=str(min(limit, _AUDIT_PAGE)), pageToken=token)
            page = self._read(answers.audit.AuditPage, "GET", "/trainyard/v1/audit", params=params)
            yield from page.entries
            token = page.next_page_token
            if not token:
                return

    def secrets(self) -> answers.secrets.SecretsView:
        """The secrets of the project, without their values."""
        return self._read(answers.secrets.SecretsView, "GET", self._secrets)

    def set_secret(self, name: str, value: str) -> answers.secrets.SecretView:
        request = {"value": value}
        return self._read(answers.secrets.SecretView, "PUT", f"{self._secrets}/{quote(name, safe='')}", json=request)

    def delete_secret(self, name: str) -> None:
        """Raises NotFound, unless an earlier attempt of this call has deleted it."""
        self._delete(f"{self._secrets}/{quote(name, safe='')}")

    def usage_report(
        self, by: Sequence[str], project: str, since: str, until: str
    ) -> answers.operating.accounting.UsageReport:
        """Usage of runs in the projects that the caller sees. Raises InvalidArgument."""
        params = _given(by=list(by), project=project, since=since, until=until)
        return self._read(answers.operating.accounting.UsageReport, "GET", "/trainyard/v1/usage", params=params)

    def channels(self) -> answers.operating.notifications.ChannelsView:
        """The notification channels of the project."""
        return self._read(answers.operating.notifications.ChannelsView, "GET", self._channels)

    def set_channel(
        self, name: str, request: answers.operating.notifications.ChannelRequest
    ) -> answers.operating.notifications.ChannelView:
        path = f"{self._channels}/{quote(name, safe='')}"
        return self._read(
            answers.operating.notifications.ChannelView, "PUT", path, json=request.model_dump(mode="json")
        )

    def delete_channel(self, name: str) -> None:
        """Raises NotFound, unless an earlier attempt of this call has deleted it."""
        self._delete(f"{self._channels}/{quote(name, safe='')}")

    def test_channel(self, name: str) -> answers.operating.notifications.DeliveryTest:
        """Send a test to a channel. It may take half a minute."""
        return self._read(
            answers.operating.notifications.DeliveryTest, "POST", f"{self._channels}/{quote(name, safe='')}:test"
        )

    def notifications(self, job: str = "") -> answers.operating.notifications.NotificationsView:
        """The newest notifications of the project, or of one of its jobs."""
        return self._read(
            answers.operating.notifications.NotificationsView, "GET", self._notifications, params=_given(job=job)
        )

    def signing_key(self) -> answers.operating.notifications.SigningKey:
        """The key of the signatures of the project's webhooks."""
        return self._read(answers.operating.notifications.SigningKey, "GET", f"{self._notifications}/signingKey")

    def logs(
        self, job: str, *, query: LogQuery = ALL_LINES, follow: bool = True, with_lines: bool = True
    ) -> Generator[LogEvent, None, None]:
        """Iterate over the job's log from its first line, each line once; ends with a LogSummary. A JobDetail comes
        first and after each change of the job's state; without `with_lines` there are no lines between them.

        StreamLost comes once for each loss of the connection, StreamResumed after it. Raises the server's refusal
        (NotFound for an unknown job).
        """
        for event in self.log_batches(job, query=query, follow=follow, with_lines=with_lines):
            if isinstance(event, tuple):
                yield from event
            else:
                yield event

    def log_batches(
        self, job: str, *, query: LogQuery = ALL_LINES, follow: bool = True, with_lines: bool = True
    ) -> Generator[LogBatchEvent, None, None]:
        """Yield as `logs` does, with the lines that came together as one event."""
        cursor, pause, lost = 0, 0.0, False
        while True:
            reason, retry_after_s = "it ended the stream", 0.0
            try:
                for event in self._stream(job, query, follow, cursor, with_lines):
                    if lost:
                        lost = False
                        yield StreamResumed()
                    pause = 0.0
                    if isinstance(event, tuple):
                        if event and event[0].cursor <= cursor:  # a repetition after a reconnection
                            event = tuple(entry for entry in event if entry.cursor > cursor)
                        if not event:
                            continue
                        cursor = event[-1].cursor
                    yield event
                    if isinstance(event, answers.log_views.LogSummary):
                        return
            except Unavailable as error:
                reason = error.message
            except TooManyRequests as error:
                reason, retry_after_s = error.message, wait_after(error)
            except httpx.TransportError as error:
                self._check_tls(error)
                reason = reason_of(error)
            if not lost:
                lost = True
                yield StreamLost(reason)
            pause = min(max(2 * pause, 0.25), LONGEST_PAUSE_S)
            self._sleep(max(pause, retry_after_s))

    def _stream(
        self, job: str, query: LogQuery, follow: bool, cursor: int, with_lines: bool
    ) -> Iterator[tuple[answers.log_views.LogEntry, ...] | answers.jobs.JobDetail | answers.log_views.LogSummary]:
        lines = "" if with_lines else "false"
        params = _given(follow=str(follow).lower(), batch="true", lines=lines, **asdict(query))
        headers = {"Last-Event-ID": str(cursor)} if cursor else {}
        path = self._of_job(job, "/logs")
        with httpx_sse.connect_sse(
            self._http, "GET", path, params=params, headers=headers, timeout=_STREAM_TIMEOUT
        ) as source:
            if not source.response.is_success:
                source.response.read()
                raise error_of(source.response)
            try:
                for sse in source.iter_sse():
                    match sse.event:
                        case "lines":
                            yield tuple(map(answers.log_views.LogEntry.of_array, json.loads(sse.data)))
                        case "log":  # of older servers
                            yield (answers.log_views.LogEntry.model_validate_json(sse.data),)
                        case "job":
                            yield answers.jobs.JobDetail.model_validate_json(sse.data)
                        case "end":
                            yield answers.log_views.LogSummary.model_validate_json(sse.data)
            except (httpx_sse.SSEError, ValueError, TypeError) as error:
                raise foreign(self.server.url) from error

    def _of_job(self, job: str, rest: str = "") -> str:
        return f"{self._extensions}/{quote(job, safe='')}{rest}"

    def _read(self, kind: type[_M], method: str, path: str, **options: Any) -> _M:
        answer = self._call(method, path, **options)
        try:
            return kind.model_validate(answer)
        except ValidationError as error:
            raise foreign(self.server.url) from error


def _given(**params: Any) -> dict[str, Any]:
    """The parameters that say something."""
    return {name: value for name, value in params.items() if value}


def _not_opened(error: SocketRefused, url: str) -> TrainyardError:
    """The reason why the server has opened no WebSocket: its own refusal, no answer, or a proxy."""
    if not error.status:
        return Unavailable(f"The server at {url} does not answer: {error}.")
    try:
        body = json.loads(error.body)
    except ValueError:
        body = None
    if isinstance(body, dict) and "error" in body:
        return from_body(error.status, body)
    if error.status in _AWAY:
        return Unavailable(f"The server at {url} does not answer: the proxy in front of it says {error.status}.")
    return Unavailable(f"The server at {url} opens no WebSocket ({error}). A proxy in front of it must pass them on.")


def _agent(agent: str) -> str:
    return f"/trainyard/v1/agents/{quote(agent, safe='')}"


def _member(project: str, name: str) -> str:
    return f"{_PROJECTS}/{quote(project, safe='')}/members/{quote(name, safe='')}"
