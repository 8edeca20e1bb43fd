"""The access table: what each route declares that a call needs. Pure.

Routes are declared with `api.routing`. A request without a row is answered with 404 or 405 before any route is looked
for, so that no route is open by mistake. docs/reference/api.md is generated from this table.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainyard_server.domain.access.permissions import ALL_PROJECTS, SAFE_METHODS, Need, Role

SIGN_IN = "/sign-in"
SIGN_OUT = "/sign-out"
OIDC = f"{SIGN_IN}/oidc"
OIDC_CALLBACK = f"{OIDC}/callback"

API_REFERENCE = "/docs"

MLFLOW = "/api/2.0/mlflow"
"""The beginning of all paths of MLflow's tracking and artifacts."""

MLFLOW_AREAS = (MLFLOW, "/api/3.0/mlflow")
"""The same, with those of its newest clients."""

OTHER_OF_MLFLOW = tuple(f"{area}/{{name:path}}" for area in MLFLOW_AREAS)

_LOCATION = "/v1/projects/{project}/locations/{location}"
OTHER_OF_VERTEX = (f"{_LOCATION}:{{verb}}", f"{_LOCATION}/{{collection}}", f"{_LOCATION}/{{collection}}/{{rest:path}}")
"""Paths of Vertex AI's API beside those of what is offered."""

METRICS = "/metrics"

TOKEN_PATHS = ("/token", "/oauth2/v4/token")
"""Paths at which Google's clients exchange an assertion for an access token."""

LONG_POLLS = ("/agent/v1/sync",)

_CLASSES = {
    "/v1/": "jobs",
    "/trainyard/": "trainyard",
    "/agent/": "agents",
    "/v2/": "logging",
    "/static/": "static",
    **dict.fromkeys(MLFLOW_AREAS, "mlflow"),
}

MLFLOW_LINKS = "/mlflow/experiments"
"""The beginning of the paths behind the links that MLflow's client prints."""

_LIVE = "/live"
_OPEN_AREA = "/static/"
_API = (
    "/openapi.json",
    METRICS,
    *("/v1/", "/v2/", "/batch", "/$discovery/", "/discovery/", "/trainyard/", "/agent/"),
    *("/storage/", "/download/", "/upload/", "/resumable/"),
    *MLFLOW_AREAS,
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
    METRICS = "metrics"  # a monitoring system, and operators


SOCKET = "WEBSOCKET"
"""The method of a WebSocket in the table."""

UNRECORDED = ""
"""The action of a route that is not GET, but changes nothing, or is an agent's routine."""


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
    own: bool = False  # for submitters their own jobs, for agents their own runs: what is another's is refused
    body_limit: int | None = None  # bytes; None: the server's
    is_upload: bool = False  # the route reads the body part by part, and limits it itself

    def __post_init__(self) -> None:
        if self.action is None and self.method not in SAFE_METHODS:
            raise ValueError(f"{self.method} {self.path} needs an action for the audit, or UNRECORDED")

    @property
    def is_storage(self) -> bool:
        """Whether it is of the API of Google Cloud Storage."""
        return self.path.startswith(STORAGE_AREAS)

    @property
    def is_for_runs(self) -> bool:
        """Whether the program of a job may make the call: of the storage, a batch, whose calls are each checked, or of
        MLflow's tracking."""
        return self.is_storage or self.path.startswith(("/batch", *MLFLOW_AREAS))

    @property
    def is_long_poll(self) -> bool:
        """Whether the answer is held until something changes."""
        return self.path in LONG_POLLS

    @property
    def is_page(self) -> bool:
        """Whether it is a page for browsers."""
        return self.method == "GET" and is_page(self.path)

    @property
    def has_changes(self) -> bool:
        """Whether the page's changes are at `/live` + its path, for the same callers: it is no redirect."""
        return self.is_page and not self.path.startswith(MLFLOW_LINKS)


_ROLES: Mapping[Access, Role | None] = {
    Access.PERSON: None,
    Access.VIEWER: Role.VIEWER,
    Access.SUBMITTER: Role.SUBMITTER,
    Access.ADMIN: Role.ADMIN,
    Access.OPERATOR: Role.ADMIN,
    Access.AGENT: Role.AGENT,
    Access.METRICS: Role.METRICS,
}


@dataclass(frozen=True, slots=True)
class Match:
    """A request's row, with the parameters of its path. `need` is None where it is open to all. `is_stream`: the answer
    is a stream of events."""

    route: Route
    need: Need | None
    parameters: Mapping[str, str]
    is_stream: bool = False


class AccessTable:
    """The rows of all routes, in the order in which routes are tried."""

    def __init__(self, rows: Iterable[Route]) -> None:
        self.rows = tuple(rows)
        self._patterns: dict[str, list[tuple[Route, re.Pattern[str]]]] = {}
        self._literals: dict[str, set[str]] = {}
        for row in self.rows:
            if "{" not in row.path:
                self._literals.setdefault(row.path, set()).add(row.method)
            before = f"(?:{_LIVE})?" if row.has_changes else ""
            expression = before + _expression(row.path)
            self._patterns.setdefault(row.method, []).append((row, re.compile(expression)))

    @property
    def actions(self) -> Sequence[str]:
        """The actions of the audit."""
        return sorted({row.action for row in self.rows if row.action})

    def check(self, calls: Iterable[tuple[str, str]]) -> None:
        """Raises ValueError for a call, of a method and the path of a route, without a row."""
        declared = {(row.method, path) for row in self.rows for path in (row.path, f"{_LIVE}{row.path}")}
        for method, path in calls:
            if (method, path) not in declared:
                raise ValueError(
                    f"{method} {path} does not say who may call it: declare the route with api.routing.Router."
                )

    def find(self, method: str, path: str) -> Match | None:
        """The row of a request and what it needs; None without a row. A path that a row has literally is no path of a
        row with parameters."""
        method = "GET" if method == "HEAD" else method
        if method not in self._literals.get(path, (method,)):
            return None
        for row, pattern in self._patterns.get(method, ()):
            if match := pattern.fullmatch(path):
                parameters = match.groupdict()
                if row.access is Access.NOBODY:
                    return Match(row, None, parameters)
                need = Need(_ROLES[row.access], parameters.get("project", ALL_PROJECTS))
                return Match(row, need, parameters, row.is_stream or path.startswith(f"{_LIVE}/"))
        return None

    def methods_of(self, path: str) -> Sequence[str]:
        """The methods that have a row for the path: for the longest row, where a job's name could end with its verb."""
        matching = [row for rows in self._patterns.values() for row, pattern in rows if pattern.fullmatch(path)]
        # The longest by its characters outside parameters.
        longest = max((row.path for row in matching), key=lambda path: len(re.sub(r"\{[^}]*\}", "", path)), default="")
        return sorted(row.method for row in matching if row.path == longest)


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


def route_class(route: Route) -> str:
    """The class of a route for monitoring: one of about ten."""
    if route.is_storage:
        return "storage"
    named = next((name for prefix, name in _CLASSES.items() if route.path.startswith(prefix)), "")
    return named or ("pages" if route.is_page else "other")


def is_described(path: str) -> bool:
    """Whether the path is in the description of the API, which is for programs. The storage has Google's own; what is
    not implemented of MLflow's API and of Vertex AI's has none, and figures for monitoring have a format of their own.
    """
    is_left_out = path.startswith(STORAGE_AREAS) or path in (*OTHER_OF_MLFLOW, *OTHER_OF_VERTEX, METRICS)
    return path == "/healthz" or (path.startswith(_API) and not is_left_out)


def wants_page(method: str, path: str, accept: str) -> bool:
    """Whether the request is a browser's for a page, or the form that signs in or out. `accept` is the header."""
    is_page_request = path in (SIGN_IN, SIGN_OUT, OIDC, OIDC_CALLBACK) or (method in SAFE_METHODS and is_page(path))
    return is_page_request and "text/html" in accept


def local_path(text: str) -> str:
    """The text if it is a path of this server's pages that a redirect may use, else "/".

    Browsers read `//host` and `/\\host` as another server, and remove tabs and line ends first.
    """
    plain = text.isascii() and text.isprintable() and " " not in text and "\\" not in text
    local = text.startswith("/") and not text.startswith("//") and len(text) <= _LONGEST_PATH
    path = text.partition("?")[0].partition("#")[0]
    return text if plain and local and is_page(path) else "/"
