"""Roles of callers, in one project and in all; tokens of files."""

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_server.domain.access.permissions import ALL_PROJECTS, Caller, Role, Token, check_tokens


def test_job_is_changed_by_its_owner_and_by_admins() -> None:
    for role, name, owner, may in (
        (Role.SUBMITTER, "alice", "alice", True),
        (Role.SUBMITTER, "alice", "bob", False),
        (Role.SUBMITTER, "alice", "", False),
        (Role.VIEWER, "alice", "alice", False),
        (Role.ADMIN, "ops", "alice", True),
        (Role.ADMIN, "ops", "", True),
        (Role.AGENT, "alice", "alice", False),
    ):
        assert Caller.everywhere(role, name).may_change("p", owner) is may, (role, name, owner)
        assert Caller(name, {"p": role}).may_change("p", owner) is may, (role, name, owner)
        assert not Caller(name, {"p": role}).may_change("q", owner)


def test_tokens_have_names_and_two_callers_cannot_have_one_secret() -> None:
    check_tokens([Token(Role.VIEWER, "v", "old"), Token(Role.VIEWER, "v", "new")])
    with pytest.raises(InvalidArgument, match=r"alice \(submitter\) and bob \(admin\) have the same token"):
        check_tokens([Token(Role.SUBMITTER, "alice", "s"), Token(Role.ADMIN, "bob", "s")])
    for name in ("", "a b", "-a", "a" * 129, "ä", "<b>", "a/b", "a=b", "a\n"):
        with pytest.raises(InvalidArgument, match="cannot be the name of a viewer token"):
            check_tokens([Token(Role.VIEWER, name, "s")])


CARL = Caller("carl", {"p": Role.ADMIN, "q": Role.VIEWER})
NINA = Caller("nina", {})
OPS = Caller("ops", {ALL_PROJECTS: Role.VIEWER, "p": Role.ADMIN})


def test_role_holds_in_its_project_and_shows_it() -> None:
    roles = [CARL.role_in(project) for project in ("p", "q", "r", ALL_PROJECTS)]
    assert roles == [Role.ADMIN, Role.VIEWER, None, None]
    assert [OPS.role_in(project) for project in ("p", "q")] == [Role.ADMIN, Role.VIEWER]
    assert not OPS.is_operator
    assert [CARL.role, NINA.role, OPS.role] == [Role.ADMIN, None, Role.VIEWER]
    assert (CARL.visible, NINA.visible, OPS.visible) == (frozenset("pq"), frozenset(), None)
    assert [CARL.sees("p"), CARL.sees("r"), NINA.sees("p"), OPS.sees("r")] == [True, False, False, True]
    described = [CARL.described_in("q"), CARL.described_in("r"), str(OPS)]
    assert described == ["carl (viewer of q)", "carl", "ops (viewer)"]
