"""The access table: every route with what it needs. Pure.

A request without a row is answered with 404 or 405 before any route is looked for, so that no route is open by mistake.
The table of docs/access.md is generated from this one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from trainyard_protocol.net.storage_calls import PLAIN_OBJECTS
from trainyard_server.domain.access.google_grants import TOKEN_PATHS
from trainyard_server.domain.access.permissions import ALL_PROJECTS, SAFE_METHODS, Need, Role

SIGN_IN = "/sign-in"
SIGN_OUT = "/sign-out"
OIDC = f"{SIGN_IN}/oidc"
OIDC_CALLBACK = f"{OIDC}/callback"

API_REFERENCE = "/docs"

_LIVE = "/live"
_OPEN_AREA = "/static/"
_API = (
    "/openapi.json",
    *("/v1/", "/v2/", "/batch", "/$discovery/", "/discovery/", "/trainyard/", "/agent/"),
    *("/storage/", "/download/", "/upload/", "/resumable/"),
)
STORAGE_AREAS = ("/storage/", *(f"/{area}/storage/" for area in ("download", "upload", "resumable/upload")))
"""The beginnings of all paths of the API of Google Cloud Storage."""

_LONGEST_PATH = 2048


class Access(StrEnum):
    """The callers that a route is for."""

    NOBODY = "nothing"  # needed: open to all
    PERSON = "person"  # any person; lists have the projects that it may see
    VIEWER = "viewer"  # of the project in the path; so the next two
    SUBMITTER = "submitter"
    ADMIN = "admin"
    OPERATOR = "operator"  # an admin of all projects
    AGENT = "agent"


UNRECORDED = ""
"""The action of a route that is not GET, but changes nothing, or is an agent's routine."""

WRITE_OBJECT, DELETE_OBJECT = "objects.write", "objects.delete"
UPDATE_BUCKET, DELETE_BUCKET = "buckets.update", "buckets.delete"


@dataclass(frozen=True, slots=True)
class Route:
    """A row of the table. `action` is its name in the audit: required for each route that is not GET; reads have none,
    except those that change something."""

    method: str
    path: str
    access: Access
    what: str
    action: str | None = None
    is_stream: bool = False  # of events, open for as long as its reader follows
    own: bool = (
        False  # for submitters their own jobs, for agents their own runs: what is another's is refused
    )

    def __post_init__(self) -> None:
        if self.action is None and self.method not in SAFE_METHODS:
            raise ValueError(f"{self.method} {self.path} needs an action for the audit, or UNRECORDED")

    @property
    def is_page(self) -> bool:
        """Whether it is a page for browsers. The page's changes are at `/live` + its path, for the same callers."""
        return self.method == "GET" and is_page(self.path)


_JOB = "/projects/{project}/jobs/{job_id}"
_PROJECT = "/v1/projects/{project}"
_V1 = f"{_PROJECT}/jobs"
_LOCATION = f"{_PROJECT}/locations/{{location}}"
_MODELS = f"{_PROJECT}/models"
_STUDIES = f"{_LOCATION}/studies"
_MORE = "/trainyard/v1"
_DETAIL = f"{_MORE}{_JOB}"
_BUCKETS = "/storage/v1/b"
_BUCKET = f"{_BUCKETS}/{{bucket}}"
_PLAIN_OBJECT = f"{PLAIN_OBJECTS}/{{bucket}}/{{name:path}}"
_MEMBER = f"{_MORE}/projects/{{project}}/members"
_SECRETS = f"{_MORE}/projects/{{project}}/secrets"

ROUTES: Sequence[Route] = (
    Route("GET", "/healthz", Access.NOBODY, "whether the service works"),
    Route("GET", SIGN_IN, Access.NOBODY, "the sign-in page"),
    Route("POST", SIGN_IN, Access.NOBODY, "sign in with a token or a code", "sign-in"),
    Route("GET", OIDC, Access.NOBODY, "go to the issuer of single sign-on"),
    Route("GET", OIDC_CALLBACK, Access.NOBODY, "come back from it, signed in", "sign-in"),
    Route("GET", "/static/{version}/{name:path}", Access.NOBODY, "scripts and style sheets of the pages"),
    Route("GET", "/$discovery/rest", Access.NOBODY, "the discovery document of `/v1`"),
    Route("GET", "/discovery/v1/apis/{api}/{version}/rest", Access.NOBODY, "the same, at its older path"),
    Route("GET", "/openapi.json", Access.NOBODY, "the description of this API, for programs"),
    Route("GET", API_REFERENCE, Access.NOBODY, "the description of this API as a page"),
    Route("POST", SIGN_OUT, Access.PERSON, "the session ends", "sign-out"),
    Route("GET", "/", Access.PERSON, "the list of jobs"),
    Route("GET", _JOB, Access.VIEWER, "a job's page"),
    Route("GET", f"{_JOB}/logs", Access.VIEWER, "its log"),
    Route("GET", f"{_JOB}/metrics", Access.VIEWER, "its curves"),
    Route("GET", f"{_JOB}/config", Access.VIEWER, "its config"),
    Route("GET", f"{_JOB}/files", Access.VIEWER, "its files"),
    Route("GET", "/cluster", Access.PERSON, "the agents and the queue"),
    Route("GET", "/audit", Access.PERSON, "the page of the audit, for operators and admins of projects"),
    Route("GET", "/tokens", Access.PERSON, "the page of one's own tokens"),
    Route("GET", "/new", Access.PERSON, "the form for a new job, in a project where one is a submitter"),
    Route("GET", f"{_PROJECT}:getConfig", Access.VIEWER, "the project's config, which is empty"),
    Route("POST", f"{_PROJECT}:predict", Access.VIEWER, "refused: no prediction here", UNRECORDED),
    Route("POST", f"{_PROJECT}:explain", Access.VIEWER, "refused: no explanations here", UNRECORDED),
    Route("GET", f"{_PROJECT}/locations", Access.VIEWER, "the regions that jobs may name"),
    Route("GET", _LOCATION, Access.VIEWER, "one of these regions"),
    Route("GET", f"{_PROJECT}/operations", Access.VIEWER, "none: jobs are no long-running operations"),
    Route("GET", f"{_PROJECT}/operations/{{operation}}", Access.VIEWER, "not found"),
    Route("POST", f"{_PROJECT}/operations/{{operation}}:cancel", Access.VIEWER, "not found", UNRECORDED),
    Route("GET", f"{_LOCATION}/operations/{{operation}}", Access.VIEWER, "not found"),
    Route("POST", f"{_LOCATION}/operations/{{operation}}:cancel", Access.VIEWER, "not found", UNRECORDED),
    Route("GET", f"{_V1}/{{job_id}}:getIamPolicy", Access.VIEWER, "the roles in its project, as a policy"),
    Route(
        "POST", f"{_V1}/{{job_id}}:setIamPolicy", Access.ADMIN, "refused: roles are a project's", UNRECORDED
    ),
    Route(
        "POST",
        f"{_V1}/{{job_id}}:testIamPermissions",
        Access.VIEWER,
        "which of some permissions one has",
        UNRECORDED,
    ),
    Route("GET", _MODELS, Access.VIEWER, "none: no prediction here"),
    Route("GET", f"{_MODELS}/{{rest:path}}", Access.VIEWER, "not found"),
    Route("POST", _MODELS, Access.VIEWER, "refused", UNRECORDED),
    Route("POST", f"{_MODELS}/{{rest:path}}", Access.VIEWER, "refused", UNRECORDED),
    Route("PATCH", f"{_MODELS}/{{rest:path}}", Access.VIEWER, "refused", UNRECORDED),
    Route("DELETE", f"{_MODELS}/{{rest:path}}", Access.VIEWER, "refused", UNRECORDED),
    Route("GET", _STUDIES, Access.VIEWER, "none: no Vizier here"),
    Route("GET", f"{_STUDIES}/{{rest:path}}", Access.VIEWER, "not found"),
    Route("POST", _STUDIES, Access.VIEWER, "refused", UNRECORDED),
    Route("POST", f"{_STUDIES}/{{rest:path}}", Access.VIEWER, "refused", UNRECORDED),
    Route("DELETE", f"{_STUDIES}/{{rest:path}}", Access.VIEWER, "refused", UNRECORDED),
    Route("GET", _V1, Access.VIEWER, "list the jobs"),
    Route("POST", _V1, Access.SUBMITTER, "submit a job, which is then the caller's", "jobs.create"),
    Route("GET", f"{_V1}/{{job_id}}", Access.VIEWER, "get a job"),
    Route(
        "PATCH",
        f"{_V1}/{{job_id}}",
        Access.SUBMITTER,
        "change the labels of one's own job; admins: of any",
        "jobs.update",
        own=True,
    ),
    Route(
        "POST",
        f"{_V1}/{{job_id}}:cancel",
        Access.SUBMITTER,
        "cancel one's own job; admins: any",
        "jobs.cancel",
        own=True,
    ),
    Route("POST", "/batch", Access.PERSON, "several calls of `/v1`, each with its own check", UNRECORDED),
    Route("POST", "/batch/{api:path}", Access.PERSON, "the same, at its older path", UNRECORDED),
    Route(
        "POST", "/v2/entries:list", Access.PERSON, "lines of a job of a project that one may see", UNRECORDED
    ),
    Route("GET", _BUCKETS, Access.PERSON, "the buckets of a project that one may see"),
    Route(
        "POST",
        _BUCKETS,
        Access.PERSON,
        "make a bucket in a project where one is a submitter",
        "buckets.create",
    ),
    Route("GET", _BUCKET, Access.PERSON, "a bucket of a project that one may see; so the next reads"),
    *(
        Route(method, _BUCKET, Access.PERSON, "change it, as an admin of its project", UPDATE_BUCKET)
        for method in ("PATCH", "PUT")
    ),
    Route("DELETE", _BUCKET, Access.PERSON, "delete it, as an admin of its project", DELETE_BUCKET),
    Route("GET", f"{_BUCKET}/{{rest:path}}", Access.PERSON, "list and read objects"),
    *(
        Route(
            method, f"{_BUCKET}/{{rest:path}}", Access.PERSON, "write objects, as a submitter", WRITE_OBJECT
        )
        for method in ("POST", "PATCH", "PUT")
    ),
    Route("DELETE", f"{_BUCKET}/{{rest:path}}", Access.PERSON, "delete one, as a submitter", DELETE_OBJECT),
    Route("GET", f"/download{_BUCKET}/{{rest:path}}", Access.PERSON, "read an object"),
    *(
        Route(method, f"{area}{_BUCKET}/o", Access.PERSON, "upload objects, as a submitter", WRITE_OBJECT)
        for area in ("/upload", "/resumable/upload")
        for method in ("POST", "PUT", "DELETE")
    ),
    Route("GET", _PLAIN_OBJECT, Access.PERSON, "read an object; by the storage's own name `/BUCKET/OBJECT`"),
    Route("PUT", _PLAIN_OBJECT, Access.PERSON, "write one, as a submitter", WRITE_OBJECT),
    Route("DELETE", _PLAIN_OBJECT, Access.PERSON, "delete one, as a submitter", DELETE_OBJECT),
    Route(
        "POST",
        TOKEN_PATHS[0],
        Access.NOBODY,
        "an access token for an assertion signed with a key",
        UNRECORDED,
    ),
    Route("POST", TOKEN_PATHS[1], Access.NOBODY, "the same", UNRECORDED),
    Route(
        "POST",
        f"{_MORE}/google-keys",
        Access.PERSON,
        "a key for Google's clients with the rights of one's own token; not by a session",
        "google-keys.create",
    ),
    Route(
        "DELETE",
        f"{_MORE}/google-keys/{{number}}",
        Access.PERSON,
        "revoke a key of one's own token",
        "google-keys.revoke",
    ),
    Route("GET", f"{_MORE}/status", Access.PERSON, "agents, and how many jobs are in each state"),
    Route("GET", f"{_MORE}/me", Access.PERSON, "the caller's name and roles"),
    Route(
        "GET",
        f"{_MORE}/health",
        Access.PERSON,
        "details of `/healthz`; with `deep=true`, for roles in all projects, the doctor's findings",
    ),
    Route("POST", f"{_MORE}/health:mend", Access.OPERATOR, "repair what is safe to repair", "health.mend"),
    Route("POST", f"{_MORE}/quotas:reload", Access.OPERATOR, "read the quota file again", "quotas.reload"),
    Route(
        "POST",
        f"{_MORE}/sign-in-codes",
        Access.PERSON,
        "a sign-in link for one's own browser; needs a token, not a session",
        "sign-in-codes.create",
    ),
    Route(
        "GET", f"{_MORE}/tokens", Access.PERSON, "one's own tokens; operators: with `all=true` everybody's"
    ),
    Route(
        "POST",
        f"{_MORE}/tokens",
        Access.PERSON,
        "a new token of one's own; operators: of anybody or an agent",
        "tokens.create",
    ),
    Route(
        "DELETE",
        f"{_MORE}/tokens/{{token_id}}",
        Access.PERSON,
        "revoke one's own token; operators: any",
        "tokens.revoke",
    ),
    Route(
        "PATCH",
        f"{_MORE}/agents/{{agent}}",
        Access.OPERATOR,
        "whether the agent, by name or id, is given new runs",
        "agents.drain",
    ),
    Route(
        "DELETE", f"{_MORE}/agents/{{agent}}", Access.OPERATOR, "forget it, and its tokens", "agents.remove"
    ),
    Route("GET", f"{_MORE}/projects", Access.PERSON, "the projects that one may see, and one's role there"),
    Route("GET", _MEMBER, Access.VIEWER, "who may do what in the project"),
    Route("PUT", f"{_MEMBER}/{{name}}", Access.ADMIN, "give a person a role in the project", "members.set"),
    Route(
        "DELETE",
        f"{_MEMBER}/{{name}}",
        Access.ADMIN,
        "take a person's role in the project away",
        "members.remove",
    ),
    Route(
        "GET",
        f"{_MORE}/audit",
        Access.PERSON,
        "who did what: operators see all, admins of projects what was done there",
    ),
    Route("GET", _SECRETS, Access.SUBMITTER, "the names of the project's secrets, never their values"),
    Route("PUT", f"{_SECRETS}/{{name}}", Access.ADMIN, "set a secret of the project", "secrets.set"),
    Route("DELETE", f"{_SECRETS}/{{name}}", Access.ADMIN, "delete a secret of the project", "secrets.delete"),
    Route("GET", f"{_MORE}/jobs", Access.PERSON, "jobs whose name contains a text"),
    Route("GET", f"{_MORE}/jobs:active", Access.PERSON, "the jobs that have not ended, and what they do"),
    Route(
        "GET",
        f"{_MORE}/projects/{{project}}/jobs",
        Access.VIEWER,
        "jobs with their owners, durations and metrics",
    ),
    Route("GET", _DETAIL, Access.VIEWER, "runs, replicas, events, verdict"),
    Route(
        "DELETE",
        _DETAIL,
        Access.SUBMITTER,
        "delete one's own job, once it has ended; admins: any",
        "jobs.delete",
        own=True,
    ),
    Route("GET", f"{_DETAIL}/why", Access.VIEWER, "why it waits"),
    Route("GET", f"{_DETAIL}/usage", Access.VIEWER, "CPU, memory and GPUs over time"),
    Route("GET", f"{_DETAIL}/explain", Access.VIEWER, "a replica's environment and command"),
    Route("GET", f"{_DETAIL}/trials", Access.VIEWER, "the trials of a study"),
    Route("GET", f"{_DETAIL}/study", Access.VIEWER, "a study as its page shows it"),
    Route("GET", f"{_DETAIL}/config", Access.VIEWER, "its config, as sent and as resolved"),
    Route(
        "POST",
        f"{_MORE}/projects/{{project}}/configs:check",
        Access.VIEWER,
        "check a config without submitting it",
        UNRECORDED,
    ),
    Route("GET", f"{_MORE}/projects/{{project}}/jobs:suggest", Access.VIEWER, "a job id that is free"),
    Route("GET", f"{_DETAIL}/metrics", Access.VIEWER, "its curves"),
    Route("GET", f"{_DETAIL}/metrics.csv", Access.VIEWER, "the same as a table"),
    Route("GET", f"{_DETAIL}/logs", Access.VIEWER, "its log, followed", is_stream=True),
    Route("GET", f"{_DETAIL}/logs/page", Access.VIEWER, "a page of its log"),
    Route("GET", f"{_DETAIL}/logs/first", Access.VIEWER, "the first error, or the first line that matches"),
    Route("GET", f"{_DETAIL}/logs/download", Access.VIEWER, "its whole log as a file"),
    Route("GET", f"{_DETAIL}/files", Access.VIEWER, "a directory of its job-dir"),
    Route("GET", f"{_DETAIL}/files/content", Access.VIEWER, "a file of its job-dir"),
    Route(
        "POST",
        "/upload/trainyard/v1/projects/{project}/packages/{filename}",
        Access.SUBMITTER,
        "a package for a job",
        "packages.upload",
    ),
    Route(
        "GET",
        f"{_MORE}/runs/{{run_id}}/packages/{{sha256}}/{{filename}}",
        Access.NOBODY,
        "a package, for a replica: by a link that is signed for its run",
    ),
    Route("GET", "/agent/v1/server", Access.AGENT, "whether an agent may join, and its name"),
    Route("POST", "/agent/v1/sync", Access.AGENT, "report what runs, get orders", UNRECORDED),
    Route(
        "POST",
        "/agent/v1/runs/{run_id}/replicas/{task}/logs",
        Access.AGENT,
        "log lines",
        UNRECORDED,
        own=True,
    ),
    Route("POST", "/agent/v1/usage", Access.AGENT, "what replicas use", UNRECORDED),
    Route("GET", "/agent/v1/staging/{sha256}/{filename}", Access.AGENT, "packages of jobs", own=True),
    Route(
        "GET",
        "/agent/v1/runs/{run_id}/packages",
        Access.AGENT,
        "links to them, for the replicas of a run",
        own=True,
    ),
    Route(
        "GET",
        "/agent/v1/runs/{run_id}/secrets",
        Access.AGENT,
        "the secrets that a run's job refers to",
        "secrets.use",
        own=True,
    ),
)

_ROLES: Mapping[Access, Role | None] = {
    Access.PERSON: None,
    Access.VIEWER: Role.VIEWER,
    Access.SUBMITTER: Role.SUBMITTER,
    Access.ADMIN: Role.ADMIN,
    Access.OPERATOR: Role.ADMIN,
    Access.AGENT: Role.AGENT,
}


@dataclass(frozen=True, slots=True)
class Match:
    """A request's row, with the parameters of its path. `need` is None where it is open to all. `is_stream`: the answer
    is a stream of events."""

    route: Route
    need: Need | None
    parameters: Mapping[str, str]
    is_stream: bool = False


def find(method: str, path: str) -> Match | None:
    """The row of a request and what it needs; None without a row."""
    method = "GET" if method == "HEAD" else method
    for route, pattern in _patterns().get(method, ()):
        if found := pattern.fullmatch(path):
            parameters = found.groupdict()
            if route.access is Access.NOBODY:
                return Match(route, None, parameters)
            need = Need(_ROLES[route.access], parameters.get("project", ALL_PROJECTS))
            return Match(route, need, parameters, route.is_stream or path.startswith(f"{_LIVE}/"))
    return None


def methods_of(path: str) -> Sequence[str]:
    """The methods that have a row for the path: for the longest row, where a job's name could end with its verb."""
    found = [route for rows in _patterns().values() for route, pattern in rows if pattern.fullmatch(path)]
    longest = max((route.path for route in found), key=len, default="")
    return sorted(route.method for route in found if route.path == longest)


@cache
def _patterns() -> Mapping[str, Sequence[tuple[Route, re.Pattern[str]]]]:
    patterns: dict[str, list[tuple[Route, re.Pattern[str]]]] = {}
    for route in ROUTES:
        before = f"(?:{_LIVE})?" if route.is_page else ""
        expression = before + _expression(route.path)
        patterns.setdefault(route.method, []).append((route, re.compile(expression)))
    return patterns


def _expression(path: str) -> str:
    parts = re.split(r"\{(\w+)(:path)?\}", path)
    literals, names, kinds = parts[::3], parts[1::3], parts[2::3]
    text = re.escape(literals[0])
    for name, kind, literal in zip(names, kinds, literals[1:], strict=True):
        text += f"(?P<{name}>{'.*' if kind else '[^/]+'}){re.escape(literal)}"
    return text


def is_for_anybody(path: str) -> bool:
    """Whether the response is the same for all callers, so that no caller is needed."""
    return path == "/healthz" or path.startswith(_OPEN_AREA)


def is_page(path: str) -> bool:
    """Whether the path is a page for browsers, not for programs."""
    shut = (*_API, _OPEN_AREA, f"{_LIVE}/", f"{SIGN_IN}/")
    return path not in ("/healthz", SIGN_IN, API_REFERENCE, *TOKEN_PATHS) and not path.startswith(shut)


def is_for_runs(match: Match) -> bool:
    """Whether the program of a job may make the call: of the storage, or a batch, whose calls are each checked."""
    return match.route.path.startswith((*STORAGE_AREAS, "/batch"))


def is_described(path: str) -> bool:
    """Whether the path is in the description of the API, which is for programs. The storage has Google's own."""
    return path == "/healthz" or (path.startswith(_API) and not path.startswith(STORAGE_AREAS))


def wants_page(method: str, path: str, accept: str) -> bool:
    """Whether the request is a browser's for a page, or the form that signs in or out. `accept` is the header."""
    is_page_request = path in (SIGN_IN, SIGN_OUT, OIDC, OIDC_CALLBACK) or (
        method in SAFE_METHODS and is_page(path)
    )
    return is_page_request and "text/html" in accept


def local_path(text: str) -> str:
    """The text if it is a path of this server's pages that a redirect may use, else "/".

    Browsers read `//host` and `/\\host` as another server, and remove tabs and line ends first.
    """
    plain = text.isascii() and text.isprintable() and " " not in text and "\\" not in text
    local = text.startswith("/") and not text.startswith("//") and len(text) <= _LONGEST_PATH
    path = text.partition("?")[0].partition("#")[0]
    return text if plain and local and is_page(path) else "/"
