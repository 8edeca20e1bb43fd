"""The access table: what each request needs, and where somebody who has signed in may be sent."""

from trainyard_server.app import ACCESS
from trainyard_server.domain.access.permissions import Need, Role
from trainyard_server.domain.access.route_access import local_path

PERSON, OPERATOR, AGENT = Need(None), Need(Role.ADMIN), Need(Role.AGENT)


VIEWER = Need(Role.VIEWER, "p")
NEEDS: dict[tuple[str, str], Need | None] = {
    ("GET", "/static/1/app.js"): None,
    ("GET", "/live/"): PERSON,
    ("GET", "/live/projects/p/jobs/j/logs"): VIEWER,
    ("HEAD", "/v1/projects/p/jobs"): VIEWER,
    ("PUT", "/trainyard/v1/projects/p/members/alice"): Need(Role.ADMIN, "p"),
    ("PUT", "/trainyard/v1/projects/*/members/alice"): OPERATOR,
    ("POST", "/agent/v1/sync"): AGENT,
}
UNKNOWN: dict[tuple[str, str], list[str]] = {
    # calls without a row, and the methods that their paths have
    ("GET", "/sign-in/x"): [],
    ("GET", "/staticx"): [],
    ("GET", "/live/v1/projects/p/jobs"): [],
    ("POST", "/trainyard/v1/projects/p/jobs/configs:check"): ["DELETE", "GET"],
    ("POST", "/trainyard/v1/projects/p/configs:checks"): [],
    ("OPTIONS", "/v1/projects/p/jobs"): ["GET", "POST"],
    ("OPTIONS", "/v1/projects/p/jobs/job:cancel"): ["POST"],
    ("DELETE", "/v1/projects/p/jobs/job"): ["GET", "PATCH"],
    ("GET", "/v1/projects//jobs"): [],
    ("GET", "/v1/projects/p/jobs\n"): [],
    ("GET", "/nobody/thought/of/this"): [],
}


def test_call_needs_the_role_of_its_row_or_has_none() -> None:
    found = {call: ACCESS.find(*call) for call in (*NEEDS, *UNKNOWN)}
    assert {call: match.need for call, match in found.items() if match is not None} == NEEDS
    assert {call: ACCESS.methods_of(call[1]) for call in UNKNOWN} == UNKNOWN


OWN = ("/", "/projects/p/jobs/j?tab=logs#x", "/?state=FAILED&label=a%3Db", "/%2F%2Fevil")
ELSEWHERE = (
    *("", "jobs", "//evil.example", "/\\evil.example", "\\\\evil.example", "https://evil.example"),
    *("javascript:alert(1)", "/\t/evil.example", "/\n/evil.example", "\t//evil.example", " //evil.example"),
    *("/ok\r\nSet-Cookie: a=b", "/jobs\u2028", "/" + "a" * 3000),
    *("/sign-in", "/sign-in?next=/", "/v1/projects/p/jobs", "/live/"),
)


def test_only_a_page_of_this_server_may_follow_a_sign_in() -> None:
    assert [local_path(path) for path in OWN] == list(OWN)
    assert [path for path in ELSEWHERE if local_path(path) != "/"] == []
