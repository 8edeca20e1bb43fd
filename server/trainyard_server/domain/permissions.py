"""Permissions: roles, callers, and the role that each request needs. Pure.

Viewers, submitters and admins are people; each role includes the one before. Agents have a role of their own. A test
compares the table of docs/access.md with every route.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from trainyard_protocol.errors import InvalidArgument

SAFE_METHODS = frozenset({"GET", "HEAD"})
"""HTTP methods without side effects."""

SIGN_IN = "/sign-in"
SIGN_OUT = "/sign-out"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,127}")
_HEALTH = "/healthz"
_OPEN = frozenset({_HEALTH, SIGN_IN})
_OPEN_AREA = "/static/"
_AGENTS = "/agent/"
_API = ("/v1/", "/trainyard/", "/upload/", _AGENTS)
_LONGEST_PATH = 2048


class Role(StrEnum):
    """The role of a token."""

    VIEWER = "viewer"  # sees everything, changes nothing
    SUBMITTER = "submitter"  # submits jobs, and changes its own
    ADMIN = "admin"  # changes all jobs, and repairs the service
    AGENT = "agent"  # worker agents: /agent/v1 and nothing else


_PEOPLE = (Role.VIEWER, Role.SUBMITTER, Role.ADMIN)

# Requests that need another role than their method implies.
_EXCEPTIONS = {
    ("POST", "/trainyard/v1/health:mend"): Role.ADMIN,
    ("POST", "/trainyard/v1/quotas:reload"): Role.ADMIN,
    ("POST", "/trainyard/v1/sign-in-codes"): Role.VIEWER,
    ("POST", SIGN_OUT): Role.VIEWER,
}
_CHECK = re.compile(r"/trainyard/v1/projects/[^/]+/configs:check")  # a POST for its body alone


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a token. `name` is the owner of the jobs that it submits."""

    role: Role
    name: str

    def may(self, role: Role) -> bool:
        """Whether it has that role, or one that includes it."""
        if self.role not in _PEOPLE or role not in _PEOPLE:
            return self.role is role
        return _PEOPLE.index(self.role) >= _PEOPLE.index(role)

    def may_change(self, owner: str) -> bool:
        """Whether it may cancel, relabel and delete a job of that owner."""
        return self.may(Role.ADMIN) or (self.may(Role.SUBMITTER) and self.name == owner)

    def __str__(self) -> str:
        return f"the {self.role}" if self.name == self.role else f"{self.name} ({self.role})"


@dataclass(frozen=True, slots=True)
class Token:
    """A secret of a caller. A caller may have several, such as an old one and its successor."""

    role: Role
    name: str
    secret: str = field(repr=False)

    @property
    def caller(self) -> Caller:
        return Caller(self.role, self.name)


def is_name(text: str) -> bool:
    """Whether the text is a valid name: at most 128 of letters, digits, '_', '.', '@', '+' and '-'."""
    return _NAME.fullmatch(text) is not None


def check_tokens(tokens: Iterable[Token]) -> None:
    """Raises InvalidArgument for an invalid name, and for a secret of two callers."""
    holders: dict[str, Token] = {}
    for token in tokens:
        if not is_name(token.name):
            raise InvalidArgument(
                f"{token.name!r} cannot be the name of a {token.role} token: "
                "letters, digits, '_', '.', '@', '+' and '-', at most 128."
            )
        other = holders.setdefault(token.secret, token)
        if other is not token:
            raise InvalidArgument(
                f"{other.caller} and {token.caller} have the same token: each needs one of its own."
            )


def needed(method: str, path: str) -> Role | None:
    """The role that a request needs; None where it is open to all. Unknown paths need a role."""
    if path in _OPEN or path.startswith(_OPEN_AREA):
        return None
    if path.startswith(_AGENTS):
        return Role.AGENT
    exception = Role.VIEWER if _CHECK.fullmatch(path) else _EXCEPTIONS.get((method, path))
    if exception is not None:
        return exception
    return Role.VIEWER if method in SAFE_METHODS else Role.SUBMITTER


def is_for_anybody(path: str) -> bool:
    """Whether the response is the same for all callers, so that no caller is needed."""
    return path == _HEALTH or path.startswith(_OPEN_AREA)


def is_page(path: str) -> bool:
    """Whether the path is a page for browsers, not for programs."""
    return path not in _OPEN and not path.startswith((*_API, _OPEN_AREA, "/live/"))


def wants_page(method: str, path: str, accept: str) -> bool:
    """Whether the request is a browser's for a page, or the form that signs in or out. `accept` is the header."""
    is_page_request = path in (SIGN_IN, SIGN_OUT) or (method in SAFE_METHODS and is_page(path))
    return is_page_request and "text/html" in accept


def local_path(text: str) -> str:
    """The text if it is a path of this server's pages that a redirect may use, else "/".

    Browsers read `//host` and `/\\host` as another server, and remove tabs and line ends first.
    """
    plain = text.isascii() and text.isprintable() and " " not in text and "\\" not in text
    local = text.startswith("/") and not text.startswith("//") and len(text) <= _LONGEST_PATH
    path = text.partition("?")[0].partition("#")[0]
    return text if plain and local and is_page(path) else "/"
