"""Routes of people: their tokens, and their roles in projects."""

from typing import Annotated

from fastapi import APIRouter

from trainyard_protocol.views.people import (
    MemberRequest,
    MembersView,
    MemberView,
    NewToken,
    ProjectsView,
    TokenRequest,
    TokensView,
    TokenView,
)
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, json_of

router = APIRouter(prefix="/trainyard/v1")


@router.get("/tokens")
def tokens(cases: Cases, caller: AuthenticatedCaller, all: bool = False) -> TokensView:  # noqa: A002 - the query
    """The caller's tokens; with `all` everybody's."""
    return cases.people.tokens(caller, all)


@router.post("/tokens")
def create_token(
    body: Annotated[TokenRequest, json_of(TokenRequest)], cases: Cases, caller: AuthenticatedCaller
) -> NewToken:
    """Make a token. The answer alone has its secret."""
    return cases.people.create_token(caller, body)


@router.delete("/tokens/{token_id}")
def revoke_token(token_id: str, cases: Cases, caller: AuthenticatedCaller) -> TokenView:
    return cases.people.revoke_token(caller, token_id)


@router.get("/projects")
def projects(cases: Cases, caller: AuthenticatedCaller) -> ProjectsView:
    return cases.people.projects(caller)


@router.get("/projects/{project}/members")
def members(project: str, cases: Cases) -> MembersView:
    return cases.people.members(project)


@router.put("/projects/{project}/members/{name}")
def set_role(
    project: str,
    name: str,
    body: Annotated[MemberRequest, json_of(MemberRequest)],
    cases: Cases,
    caller: AuthenticatedCaller,
) -> MemberView:
    """Give a person a role, in the project or with `*` in all."""
    return cases.people.set_role(caller, project, name, body.role)


@router.delete("/projects/{project}/members/{name}")
def remove_role(project: str, name: str, cases: Cases) -> dict[str, str]:
    cases.people.remove_role(project, name)
    return {}
