"""Whom a container runs as, by the agent's user and options."""

import os

import pytest

from trainyard_agent.engines.docker import users
from trainyard_agent.engines.docker.spec import ImageInfo
from trainyard_agent.engines.docker.users import ContainerUsers
from trainyard_agent.runtimes.base import ProgramUser
from trainyard_protocol.wire.sync import RunOrder
from unit.agent.stub_server import run_order

ROOTS = ("", "root", "0", "0:0", "root:video", "00", "+0", ":5")
NOBODY = 65534


def order(owner: str = "alice", project: str = "p") -> RunOrder:
    return run_order("1" * 32, "master-replica-0").model_copy(update={"owner": owner, "project": project})


def agent_of(monkeypatch: pytest.MonkeyPatch, uid: int, gid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(os, "getegid", lambda: gid)


def test_root_agent_gives_each_owner_an_id_that_no_person_has(monkeypatch: pytest.MonkeyPatch) -> None:
    agent_of(monkeypatch, 0, 0)
    whose = [order(), order("bob"), order(project="q"), order("alice/p", "p"), order("p", "p/alice")]
    chosen = [ContainerUsers().of(one, ImageInfo("i", user="1000"), False) for one in whose]
    assert len({one.uid for one in chosen if one}) == len(chosen)
    for one in chosen:
        assert one is not None
        assert users.FIRST <= one.uid < users.FIRST + users.COUNT
        assert one == ProgramUser(one.uid, one.uid, f"trainyard-{one.uid}")
    assert ContainerUsers().of(order(), ImageInfo("i"), False) == chosen[0]


def test_other_agent_gives_its_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    agent_of(monkeypatch, NOBODY, 7)
    expected = ProgramUser(NOBODY, 7, "nobody")
    for image in (*ROOTS, "1000", "trainer"):
        assert ContainerUsers().of(order(), ImageInfo("i", user=image), False) == expected


@pytest.mark.parametrize("agent", [0, NOBODY])
def test_one_user_keeps_what_an_image_has_in_place_of_root(monkeypatch: pytest.MonkeyPatch, agent: int) -> None:
    agent_of(monkeypatch, agent, agent)
    chooses = ContainerUsers(one_user=True)
    assert chooses.of(order(), ImageInfo("i", user="trainer"), False) is None
    found = {chooses.of(order(owner), ImageInfo("i", user=root), False) for root in ROOTS for owner in ("a", "")}
    (user,) = found
    assert user is not None
    assert (user.uid == NOBODY) == (agent == NOBODY)
    assert user.uid


def test_engine_with_a_user_namespace_keeps_the_images_user_unless_ids_are_given() -> None:
    assert ContainerUsers().of(order(), ImageInfo("i"), True) is None
    assert ContainerUsers("image").of(order(), ImageInfo("i"), False) is None
    given = ContainerUsers((1000, 2000)).of(order(), ImageInfo("i", user="trainer"), True)
    assert given is not None
    assert given.ids == "1000:2000"
