"""Messages about people (`/trainyard/v1/tokens`, `/projects`): tokens, projects and their members."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from trainyard_protocol.message import Wire

TOKEN_PREFIX = "trainyard_"  # noqa: S105 - no secret
"""The start of every token that a server makes, for scanners that look for leaked secrets."""

MAX_DESCRIPTION = 256
LONGEST_EXPIRY_S = 366 * 86400

PersonRole = Literal["viewer", "submitter", "admin"]


class TokenRequest(Wire):
    """A token to be made. `owner` is a person, by default the caller, or with `for_agent` an agent's name. It expires
    after `expires_in_s` seconds; None: never."""

    owner: str = ""
    for_agent: bool = False
    description: str = Field(default="", max_length=MAX_DESCRIPTION)
    expires_in_s: int | None = Field(default=None, gt=0, le=LONGEST_EXPIRY_S)


class TokenView(Wire):
    """A token, without its secret. `source` is `file` for one that the operator gave to the server in a file: it has no
    times and cannot be revoked here. `last_used_at` is right within a minute. `made_with` is the id of the token that
    it was made with, also by a session; `single-sign-on` for one that was made after signing in without a token."""

    token_id: str
    owner: str
    for_agent: bool = False
    description: str = ""
    source: Literal["made", "file"] = "made"
    created_at: datetime | None = None
    created_by: str = ""
    made_with: str = ""
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str = ""

    def ended(self, now: datetime) -> str:
        """`revoked`, `expired`, or "" while it is valid."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else ""


class MadeTokens(Wire):
    """The valid tokens that were made with a token, and with those: `tokens` that the caller may revoke, and the number
    of others, which an operator may."""

    tokens: tuple[TokenView, ...] = ()
    others: int = 0


class RevokedToken(TokenView):
    """A revoked token, and what was made with it: revoked too, if the call was recursive."""

    made: MadeTokens = MadeTokens()


class NewToken(Wire):
    """A new token with its secret, which is shown this once."""

    token: TokenView
    secret: str = Field(repr=False)


class TokensView(Wire):
    tokens: tuple[TokenView, ...]


class ProjectView(Wire):
    """A project, and the caller's role there."""

    project: str
    role: str


class ProjectsView(Wire):
    """The projects that the caller sees, and its role in all of them, "" without one."""

    projects: tuple[ProjectView, ...]
    role: str = ""


class MemberRequest(Wire):
    role: PersonRole


class MemberView(Wire):
    """A person's role in a project; `project` is `*` for a role in all. A role that a token of a file has was given by
    the server's operator, at no time that is stored."""

    project: str
    name: str
    role: str
    since: datetime | None = None
    given_by: str = ""


class MembersView(Wire):
    """The members of a project. `everywhere`: the others who may do something there, by a role in all projects."""

    members: tuple[MemberView, ...]
    everywhere: tuple[MemberView, ...] = ()

    @property
    def everybody(self) -> tuple[MemberView, ...]:
        return (*self.members, *self.everywhere)


class Me(Wire):
    """The caller. `role` is the one in all projects, else the highest in any, "" without one; `projects` are the roles
    by project, `*` for all."""

    role: str
    name: str
    projects: dict[str, str] = Field(default_factory=dict)


class SignInCode(Wire):
    """A code to sign in with in a browser, once and until `expires_at`, as `name` with that role."""

    code: str
    expires_at: datetime
    name: str
    role: str
