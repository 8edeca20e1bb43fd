"""The access table: what each request needs, and where somebody who has signed in may be sent."""

import pytest

from trainyard_server.domain.access.permissions import Need, Role
from trainyard_server.domain.access.route_access import local_path
from trainyard_server.routes import ACCESS

PERSON, OPERATOR, AGENT = Need(None), Need(Role.ADMIN), Need(Role.AGENT)


@pytest.mark.parametrize(
    ("method", "path", "need"),
    [
        ("GET", "/static/1/app.js", None),
        ("GET", "/live/", PERSON),
        ("GET", "/live/projects/p/jobs/j/logs", Need(Role.VIEWER, "p")),
        ("HEAD", "/v1/projects/p/jobs", Need(Role.VIEWER, "p")),
        ("PUT", "/trainyard/v1/projects/p/members/alice", Need(Role.ADMIN, "p")),
        ("PUT", "/trainyard/v1/projects/*/members/alice", OPERATOR),
        ("POST", "/agent/v1/sync", AGENT),
    ],
)
def test_call_needs_a_role(method: str, path: str, need: Need | None) -> None:
    match = ACCESS.find(method, path)
    assert match is not None
    assert match.need == need


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("GET", "/sign-in/x", False),
        ("GET", "/staticx", False),
        ("GET", "/live/v1/projects/p/jobs", False),
        ("POST", "/trainyard/v1/projects/p/jobs/configs:check", True),
        ("POST", "/trainyard/v1/projects/p/configs:checks", False),
        ("OPTIONS", "/v1/projects/p/jobs", True),
        ("DELETE", "/v1/projects/p/jobs", True),
        ("GET", "/v1/projects//jobs", False),
        ("GET", "/v1/projects/p/jobs\n", False),
        ("GET", "/nobody/thought/of/this", False),
    ],
)
def test_call_without_a_row_is_none(method: str, path: str, known: bool) -> None:
    assert ACCESS.find(method, path) is None
    assert bool(ACCESS.methods_of(path)) is known


def test_path_with_a_verb_has_the_methods_of_that_verb_alone() -> None:
    assert ACCESS.methods_of("/v1/projects/p/jobs/job:cancel") == ["POST"]
    assert ACCESS.methods_of("/v1/projects/p/jobs/job") == ["GET", "PATCH"]


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
