"""Use cases of people: their tokens, and their roles in projects."""

import secrets
from datetime import timedelta

from trainyard_protocol.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Violation,
)
from trainyard_protocol.views.people import (
    TOKEN_PREFIX,
    MembersView,
    MemberView,
    NewToken,
    PersonRole,
    ProjectsView,
    ProjectView,
    TokenRequest,
    TokensView,
    TokenView,
)
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import ALL_PROJECTS, NAME_RULE, Caller, Role, Token, is_name
from trainyard_server.services.jobs.jobs import check_project
from trainyard_server.services.people.principals import token_id
from trainyard_server.storage.db.base.models import MemberRow, TokenRow
from trainyard_server.storage.db.queries.job_queries import JobList
from trainyard_server.storage.db.tables import people
from trainyard_server.storage.db.tables.audit_trail import current_trail
from trainyard_server.storage.events.notifier import person_topic

MAX_TOKENS = 1000
"""Most tokens in a list, and most that one person may have made."""

MAX_MEMBERS = 1000
"""Most members of a project."""

_SECRET_BYTES = 32
_ID_BYTES = 6


class People:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def tokens(self, caller: Caller, everybody: bool = False) -> TokensView:
        """The caller's tokens, or everybody's for an operator, the newest first. Raises PermissionDenied."""
        if everybody and not caller.is_operator:
            raise PermissionDenied(f"You are {caller}. Only an operator sees the tokens of others.")
        owner = None if everybody else caller.name
        with self._backend.store.read() as reader:
            tokens = [_token_view(row) for row in people.tokens(reader, owner, MAX_TOKENS)]
        files = [_file_view(token) for token in self._backend.settings.tokens if owner in (None, token.name)]
        return TokensView(tokens=(*tokens, *files))

    def create_token(self, caller: Caller, request: TokenRequest) -> NewToken:
        """Make a token. Only operators make those of others and of agents.

        Raises PermissionDenied, InvalidArgument for an invalid name, ResourceExhausted.
        """
        owner = request.owner or ("agent" if request.for_agent else caller.name)
        if not is_name(owner):
            raise InvalidArgument(Violation("owner", f"{owner!r} is not a valid name: {NAME_RULE}."))
        if (request.for_agent or owner != caller.name) and not caller.is_operator:
            what = "a token of an agent" if request.for_agent else f"a token of {owner}"
            raise PermissionDenied(f"You are {caller}. Only an operator makes {what}.")
        now = self._backend.clock()
        secret = TOKEN_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        row = TokenRow(
            token_id=secrets.token_hex(_ID_BYTES),
            digest=people.digest_of(secret),
            owner=owner,
            for_agent=request.for_agent,
            description=request.description,
            created_at=now,
            created_by=caller.name,
            expires_at=now + timedelta(seconds=request.expires_in_s) if request.expires_in_s else None,
            revoked_by="",
        )
        if trail := current_trail():
            trail.subject = row.token_id
        with self._backend.store.write() as writer:
            if len(people.tokens(writer, owner, MAX_TOKENS)) >= MAX_TOKENS:
                raise ResourceExhausted(f"{owner} has {MAX_TOKENS} tokens, the most that one may have.")
            people.add_token(writer, row)
        return NewToken(token=_token_view(row), secret=secret)

    def revoke_token(self, caller: Caller, token_id: str) -> TokenView:
        """Revoke a token: its sessions and streams end at once. One that was revoked already stays as it is.

        Raises NotFound, also for a token of somebody else unless the caller is an operator; FailedPrecondition for a
        token of a file.
        """
        for token in self._backend.settings.tokens:
            if _file_id(token) == token_id and (token.name == caller.name or caller.is_operator):
                raise FailedPrecondition(
                    f"The token {token_id} is in a file of the server's operator (--token-file): take it out of the "
                    "server's options and restart the server."
                )
        with self._backend.store.write() as writer:
            row = people.token(writer, token_id)
            if row is None or (row.owner != caller.name and not caller.is_operator):
                raise NotFound(f"There is no token {token_id}. `trainyard tokens list` shows yours.")
            people.revoke(writer, token_id, caller.name, self._backend.clock())
            writer.session.refresh(row)
            view = _token_view(row)
        self._backend.notifier.publish(person_topic(view.owner))
        return view

    def projects(self, caller: Caller) -> ProjectsView:
        """The projects that the caller sees: with members or jobs."""
        with self._backend.store.read() as reader:
            names = {*people.projects(reader), *JobList(reader, visible=None).projects()} - {ALL_PROJECTS}
        visible = names if caller.visible is None else caller.visible
        everywhere = caller.grants.get(ALL_PROJECTS)
        return ProjectsView(
            projects=tuple(ProjectView(project=name, role=str(caller.role_in(name) or "")) for name in sorted(visible)),
            role=str(everywhere or ""),
        )

    def members(self, project: str) -> MembersView:
        """The people with a role in the project."""
        with self._backend.store.read() as reader:
            return MembersView(members=tuple(map(_member_view, people.members(reader, project))))

    def set_role(self, caller: Caller, project: str, name: str, role: PersonRole) -> MemberView:
        """Give a person a role in the project, in place of an earlier one. The person need not be known yet.

        Raises InvalidArgument for an invalid name, ResourceExhausted.
        """
        if project != ALL_PROJECTS:
            check_project(project)
        if not is_name(name):
            raise InvalidArgument(Violation("name", f"{name!r} is not a valid name: {NAME_RULE}."))
        with self._backend.store.write() as writer:
            before = people.members(writer, project)
            if len(before) >= MAX_MEMBERS and name not in {row.name for row in before}:
                raise ResourceExhausted(f"The project {project} has {MAX_MEMBERS} members, the most there may be.")
            people.set_role(writer, project, name, Role(role), caller.name, self._backend.clock())
            writer.session.flush()
            (row,) = [row for row in people.members(writer, project) if row.name == name]
            view = _member_view(row)
        self._backend.notifier.publish(person_topic(name))
        return view

    def remove_role(self, project: str, name: str) -> None:
        """Take a person's role in the project away: its streams end at once. Raises NotFound."""
        with self._backend.store.write() as writer:
            removed = people.remove_role(writer, project, name)
        if not removed:
            raise NotFound(f"{name} has no role in {project}. `trainyard projects members` shows who has one.")
        self._backend.notifier.publish(person_topic(name))


def _token_view(row: TokenRow) -> TokenView:
    return TokenView.model_validate(row, from_attributes=True)


def _file_view(token: Token) -> TokenView:
    return TokenView(
        token_id=_file_id(token),
        owner=token.name,
        for_agent=token.role is Role.AGENT,
        description=f"{token.role} of all projects" if token.role is not Role.AGENT else "",
        source="file",
    )


def _file_id(token: Token) -> str:
    return token_id(token.credential)


def _member_view(row: MemberRow) -> MemberView:
    return MemberView.model_validate(row, from_attributes=True)
