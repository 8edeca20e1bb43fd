"""Roles, what each call needs, and where somebody who has signed in may be sent."""

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_server.domain.permissions import (
    Caller,
    Role,
    Token,
    check_tokens,
    local_path,
    needed,
)

ROLES = list(Role)


@pytest.mark.parametrize(
    ("role", "may"),
    [
        (Role.VIEWER, {Role.VIEWER}),
        (Role.SUBMITTER, {Role.VIEWER, Role.SUBMITTER}),
        (Role.ADMIN, {Role.VIEWER, Role.SUBMITTER, Role.ADMIN}),
        (Role.AGENT, {Role.AGENT}),
    ],
)
def test_role_includes_those_below_it_and_agents_are_apart(role: Role, may: set[Role]) -> None:
    assert {role_needed for role_needed in Role if Caller(role, "x").may(role_needed)} == may


@pytest.mark.parametrize(
    ("role", "name", "owner", "may"),
    [
        (Role.SUBMITTER, "alice", "alice", True),
        (Role.SUBMITTER, "alice", "bob", False),
        (Role.SUBMITTER, "alice", "", False),
        (Role.VIEWER, "alice", "alice", False),
        (Role.ADMIN, "ops", "alice", True),
        (Role.ADMIN, "ops", "", True),
        (Role.AGENT, "alice", "alice", False),
    ],
)
def test_job_is_changed_by_its_owner_and_by_admins(role: Role, name: str, owner: str, may: bool) -> None:
    assert Caller(role, name).may_change(owner) is may


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/healthz", None),
        ("GET", "/sign-in", None),
        ("POST", "/sign-in", None),
        ("GET", "/static/app.js", None),
        ("GET", "/sign-in/x", Role.VIEWER),
        ("GET", "/staticx", Role.VIEWER),
        ("GET", "/", Role.VIEWER),
        ("HEAD", "/v1/projects/p/jobs", Role.VIEWER),
        ("POST", "/v1/projects/p/jobs", Role.SUBMITTER),
        ("OPTIONS", "/v1/projects/p/jobs", Role.SUBMITTER),
        ("POST", "/trainyard/v1/health:mend", Role.ADMIN),
        ("POST", "/trainyard/v1/sign-in-codes", Role.VIEWER),
        ("POST", "/sign-out", Role.VIEWER),
        ("POST", "/trainyard/v1/projects/p/configs:check", Role.VIEWER),
        ("POST", "/trainyard/v1/projects/p/jobs/configs:check", Role.SUBMITTER),
        ("POST", "/trainyard/v1/projects/p/configs:checks", Role.SUBMITTER),
        ("GET", "/agent/v1/staging/a/b", Role.AGENT),
        ("POST", "/agent/v1/sync", Role.AGENT),
        ("GET", "/nobody/thought/of/this", Role.VIEWER),
        ("DELETE", "/nobody/thought/of/this", Role.SUBMITTER),
    ],
)
def test_call_needs_a_role(method: str, path: str, role: Role | None) -> None:
    assert needed(method, path) is role


@pytest.mark.parametrize(
    "path", ["/", "/projects/p/jobs/j?tab=logs#x", "/?state=FAILED&label=a%3Db", "/%2F%2Fevil"]
)
def test_path_of_this_server_may_follow_a_sign_in(path: str) -> None:
    assert local_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "jobs",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "https://evil.example",
        "javascript:alert(1)",
        "/\t/evil.example",
        "/\n/evil.example",
        "\t//evil.example",
        " //evil.example",
        "/ok\r\nSet-Cookie: a=b",
        "/jobs\u2028",
        "/" + "a" * 3000,
        "/sign-in",
        "/sign-in?next=/",
        "/v1/projects/p/jobs",
        "/live/",
    ],
)
def test_no_other_place_follows_a_sign_in(path: str) -> None:
    assert local_path(path) == "/"


def test_two_callers_cannot_have_one_secret_but_one_caller_may_have_two() -> None:
    check_tokens([Token(Role.VIEWER, "v", "old"), Token(Role.VIEWER, "v", "new")])
    with pytest.raises(InvalidArgument, match=r"alice \(submitter\) and bob \(admin\) have the same token"):
        check_tokens([Token(Role.SUBMITTER, "alice", "s"), Token(Role.ADMIN, "bob", "s")])


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 129, "ä", "<b>", "a/b", "a=b", "a\n"])
def test_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be the name of a viewer token"):
        check_tokens([Token(Role.VIEWER, name, "s")])
