"""Who may do what: roles, the callers that have them, and what each call needs. Pure.

People are viewers, submitters or admins, each may do what the one before may; agents are apart. docs/access.md has
the same as a table, and a test holds it against every route.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from trainyard_protocol.errors import InvalidArgument

SAFE_METHODS = frozenset({"GET", "HEAD"})
"""What changes nothing."""

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
    """Who a token speaks for."""

    VIEWER = "viewer"  # sees everything, changes nothing
    SUBMITTER = "submitter"  # submits jobs, and changes its own
    ADMIN = "admin"  # changes everybody's jobs, and mends the service
    AGENT = "agent"  # worker agents: /agent/v1 and nothing else


_PEOPLE = (Role.VIEWER, Role.SUBMITTER, Role.ADMIN)

# What needs another role than its method says.
_EXCEPTIONS = {
    ("POST", "/trainyard/v1/health:mend"): Role.ADMIN,
    ("POST", "/trainyard/v1/sign-in-codes"): Role.VIEWER,
    ("POST", SIGN_OUT): Role.VIEWER,
}
_CHECK = re.compile(r"/trainyard/v1/projects/[^/]+/configs:check")  # a POST for its body alone


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who has shown a token. `name` is what its jobs are owned by."""

    role: Role
    name: str

    def may(self, wanted: Role) -> bool:
        """Whether it has that role, or one that includes it."""
        if self.role not in _PEOPLE or wanted not in _PEOPLE:
            return self.role is wanted
        return _PEOPLE.index(self.role) >= _PEOPLE.index(wanted)

    def may_change(self, owner: str) -> bool:
        """Whether it may cancel and relabel a job of that owner."""
        return self.may(Role.ADMIN) or (self.may(Role.SUBMITTER) and self.name == owner)

    def __str__(self) -> str:
        return f"the {self.role}" if self.name == self.role else f"{self.name} ({self.role})"


@dataclass(frozen=True, slots=True)
class Token:
    """A secret, and who has it. Several may speak for one caller, such as an old one and its successor."""

    role: Role
    name: str
    secret: str = field(repr=False)

    @property
    def caller(self) -> Caller:
        return Caller(self.role, self.name)


def is_name(text: str) -> bool:
    """Whether somebody can be called that: letters, digits, '_', '.', '@', '+' and '-', at most 128."""
    return _NAME.fullmatch(text) is not None


def check_tokens(tokens: Iterable[Token]) -> None:
    """Raises InvalidArgument for names that are none, and for a secret that two callers have."""
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
    """The role that a call takes; None for what is open to all. A route that nobody thought of here needs one."""
    if path in _OPEN or path.startswith(_OPEN_AREA):
        return None
    if path.startswith(_AGENTS):
        return Role.AGENT
    exception = Role.VIEWER if _CHECK.fullmatch(path) else _EXCEPTIONS.get((method, path))
    if exception is not None:
        return exception
    return Role.VIEWER if method in SAFE_METHODS else Role.SUBMITTER


def is_for_anybody(path: str) -> bool:
    """Whether it is the same for all, so that nobody has to know who asks."""
    return path == _HEALTH or path.startswith(_OPEN_AREA)


def is_page(path: str) -> bool:
    """Whether people look at it in a browser, unlike what programs call."""
    return path not in _OPEN and not path.startswith((*_API, _OPEN_AREA, "/live/"))


def wants_page(method: str, path: str, accept: str) -> bool:
    """Whether somebody waits for a page, who takes what `accept` says: looks at one, or has sent the form that signs
    in or out."""
    looks = path in (SIGN_IN, SIGN_OUT) or (method in SAFE_METHODS and is_page(path))
    return looks and "text/html" in accept


def local_path(text: str) -> str:
    """The path of this server that somebody may be sent on to; "/" for whatever is none.

    Browsers read `//host` and `/\\host` as another server, and leave out tabs and line ends before they look.
    """
    plain = text.isascii() and text.isprintable() and " " not in text and "\\" not in text
    here = text.startswith("/") and not text.startswith("//") and len(text) <= _LONGEST_PATH
    path = text.partition("?")[0].partition("#")[0]
    return text if plain and here and is_page(path) else "/"
