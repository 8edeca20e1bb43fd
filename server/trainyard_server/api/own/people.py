"""Routes of people: their tokens, and their roles in projects."""

from fastapi import Request

from trainyard_protocol.answers.people import (
    MadeTokens,
    MemberRequest,
    MembersView,
    MemberView,
    NewToken,
    ProjectsView,
    RevokedToken,
    TokenRequest,
    TokensView,
)
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access

router = Router(prefix="/trainyard/v1")


@router.get("/tokens", Access.PERSON, "your own tokens; operators: with `all=true` everybody's")
def tokens(cases: Cases, caller: AuthenticatedCaller, all: bool = False) -> TokensView:  # noqa: A002 - the query
    """The caller's tokens; with `all` everybody's."""
    return cases.people.tokens(caller, all)


@router.post("/tokens", Access.PERSON, "a new token of your own; operators: of anybody or an agent", "tokens.create")
def create_token(request: Request, body: TokenRequest, cases: Cases, caller: AuthenticatedCaller) -> NewToken:
    """Make a token. The answer alone has its secret."""
    return cases.people.create_token(caller, request.state.token_id, body)


@router.get("/tokens/{token_id}/made", Access.PERSON, "the valid tokens that were made with a token, and with those")
def made_with(token_id: str, cases: Cases, caller: AuthenticatedCaller) -> MadeTokens:
    """The valid tokens that were made with a token, and with those."""
    return cases.people.made_with(caller, token_id)


@router.delete(
    "/tokens/{token_id}",
    Access.PERSON,
    "revoke your own token; operators: any; with `recursive=true` also what was made with it",
    "tokens.revoke",
)
def revoke_token(token_id: str, cases: Cases, caller: AuthenticatedCaller, recursive: bool = False) -> RevokedToken:
    """Revoke a token; with `recursive` also those that were made with it, and with those."""
    return cases.people.revoke_token(caller, token_id, recursive)


@router.get("/projects", Access.PERSON, "the projects that you may see, and your role there")
def projects(cases: Cases, caller: AuthenticatedCaller) -> ProjectsView:
    return cases.people.projects(caller)


@router.get("/projects/{project}/members", Access.VIEWER, "who may do what in the project")
def members(project: str, cases: Cases) -> MembersView:
    return cases.people.members(project)


@router.put("/projects/{project}/members/{name}", Access.ADMIN, "give a person a role in the project", "members.set")
def set_role(project: str, name: str, body: MemberRequest, cases: Cases, caller: AuthenticatedCaller) -> MemberView:
    """Give a person a role, in the project or with `*` in all."""
    return cases.people.set_role(caller, project, name, body.role)


@router.delete(
    "/projects/{project}/members/{name}", Access.ADMIN, "take a person's role in the project away", "members.remove"
)
def remove_role(project: str, name: str, cases: Cases) -> dict[str, str]:
    cases.people.remove_role(project, name)
    return {}
