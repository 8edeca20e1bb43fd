"""Use cases of people: their tokens, and their roles in projects."""

import secrets
from collections.abc import Sequence
from datetime import timedelta

from trainyard_protocol.answers.people import (
    TOKEN_PREFIX,
    MadeTokens,
    MembersView,
    MemberView,
    NewToken,
    PersonRole,
    ProjectsView,
    ProjectView,
    RevokedToken,
    TokenRequest,
    TokensView,
    TokenView,
)
from trainyard_protocol.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Violation,
)
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import ALL_PROJECTS, NAME_RULE, PEOPLE, Caller, Role, Token, is_name
from trainyard_server.services.jobs.known_jobs import check_project
from trainyard_server.services.people.principals import token_id
from trainyard_server.storage.db.base.people_models import MemberRow, TokenRow
from trainyard_server.storage.db.queries.job_queries import JobList
from trainyard_server.storage.db.queries.reader import Reader
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

    def create_token(self, caller: Caller, made_with: str, request: TokenRequest) -> NewToken:
        """Make a token; `made_with` is the id of the caller's own. Only operators make those of others and of agents.

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
            made_with=made_with,
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

    def made_with(self, caller: Caller, token_id: str) -> MadeTokens:
        """The valid tokens that were made with a token, and with those. Raises NotFound as `revoke_token` does."""
        with self._backend.store.read() as reader:
            self._checked_token(reader, caller, token_id)
            return _made_view(self._valid_made_with(reader, token_id), caller)

    def revoke_token(self, caller: Caller, token_id: str, recursive: bool = False) -> RevokedToken:
        """Revoke a token: its sessions and streams end at once. One that was revoked already stays as it is.
        `recursive`: also the tokens that were made with it, and with those; of a token of a file these alone.

        Raises NotFound, also for a token of somebody else unless the caller is an operator; FailedPrecondition for a
        token of a file.
        """
        with self._backend.store.write() as writer:
            listed = self._checked_token(writer, caller, token_id)
            if listed.source == "file" and not recursive:
                raise FailedPrecondition(
                    f"The token {token_id} is in a file of the server's operator (--token-file): take it out of the "
                    "server's options and restart the server. `trainyard tokens revoke --recursive` revokes what was "
                    "made with it."
                )
            made = _made_view(self._valid_made_with(writer, token_id), caller)
            revoked = [listed, *(made.tokens if recursive else ())]
            people.revoke(writer, [token.token_id for token in revoked], caller.name, self._backend.clock())
            writer.read_again()
            if recursive:
                rows = (people.token(writer, token.token_id) for token in made.tokens)
                made = made.model_copy(update={"tokens": tuple(_token_view(row) for row in rows if row is not None)})
            answer = RevokedToken(**self._checked_token(writer, caller, token_id).model_dump(), made=made)
        self._backend.notifier.publish(*{person_topic(token.owner) for token in revoked})
        return answer

    def _valid_made_with(self, reader: Reader, token_id: str) -> Sequence[TokenView]:
        now = self._backend.clock()
        return [token for token in map(_token_view, people.made_with(reader, token_id)) if not token.ended(now)]

    def _checked_token(self, reader: Reader, caller: Caller, token_id: str) -> TokenView:
        """A token that the caller may revoke, or one of a file. Raises NotFound."""
        row = people.token(reader, token_id)
        listed = _token_view(row) if row is not None else self._file_token(reader, token_id)
        if listed is None or not _may_revoke(caller, listed):
            raise NotFound(f"There is no token {token_id}. `trainyard tokens list` shows yours.")
        return listed

    def _file_token(self, reader: Reader, token_id: str) -> TokenView | None:
        """The token of a file with this id. One that is in no file any more has its id, once others were made with
        it."""
        for token in self._backend.settings.tokens:
            if _file_id(token) == token_id:
                return _file_view(token)
        is_used = bool(people.made_with(reader, token_id))
        return TokenView(token_id=token_id, owner="", source="file") if is_used else None

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
        """The people with a role in the project, and those with a role in all."""
        with self._backend.store.read() as reader:
            rows = people.members(reader, project)
            others = people.members(reader, ALL_PROJECTS) if project != ALL_PROJECTS else ()
        of_files = {(token.name, token.role) for token in self._backend.settings.tokens if token.role in PEOPLE}
        everywhere = [MemberView(project=ALL_PROJECTS, name=name, role=role) for name, role in sorted(of_files)]
        return MembersView(members=tuple(map(_member_view, rows)), everywhere=(*map(_member_view, others), *everywhere))

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


def _made_view(made: Sequence[TokenView], caller: Caller) -> MadeTokens:
    tokens = tuple(token for token in made if _may_revoke(caller, token))
    return MadeTokens(tokens=tokens, others=len(made) - len(tokens))


def _may_revoke(caller: Caller, token: TokenView) -> bool:
    return token.owner == caller.name or caller.is_operator


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
