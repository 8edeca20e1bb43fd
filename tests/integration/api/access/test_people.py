"""Tokens that are made while the server runs, roles in projects, and what a revocation ends."""

from typing import Any

from beds.databases import on_every_database
from integration.api.access.test_session_streams import Follower, cookie
from integration.api.api_support import ADMIN, ALICE, VERA, Server, eventually, running_agent, serving
from trainyard_protocol.answers.people import TOKEN_PREFIX
from trainyard_server.storage.db.base.people_models import TokenRow

TOKENS = "/trainyard/v1/tokens"
MEMBERS = "/trainyard/v1/projects/p/members"
ME = "/trainyard/v1/me"
DAY_S = 86400


def test_made_token_works_at_once_until_it_is_revoked(api: Server) -> None:
    assert api.set_role("carl", "submitter") == 200
    token_id, carl = api.token(owner="carl", description="laptop")
    secret = carl["Authorization"].split()[1]
    assert secret.startswith(TOKEN_PREFIX)
    assert api.done("GET", ME, carl) == {"role": "submitter", "name": "carl", "projects": {"p": "submitter"}}
    with api.use_cases.backend.store.read() as reader:
        row = reader.session.get(TokenRow, token_id)
        assert row is not None
        assert secret not in str(vars(row))
    (listed,) = api.done("GET", TOKENS, carl)["tokens"]
    assert (listed["description"], listed["created_by"]) == ("laptop", "admin")
    assert listed["last_used_at"] == "2026-11-20T12:00:00Z"
    assert api.done("DELETE", f"{TOKENS}/{token_id}", carl)["revoked_by"] == "carl"
    assert api.status("GET", ME, carl) == 401
    assert api.done("DELETE", f"{TOKENS}/{token_id}")["revoked_by"] == "carl", "the first time stays"


def test_person_makes_tokens_of_its_own_alone(api: Server) -> None:
    requests: tuple[tuple[dict[str, Any], int], ...] = (
        ({}, 200),
        ({"owner": "alice"}, 200),
        ({"owner": "bob"}, 403),
        ({"for_agent": True}, 403),
        ({"owner": "a b"}, 400),
        ({"expires_in_s": 0}, 400),
        ({"expires_in_s": 367 * DAY_S}, 400),
        ({"description": "x" * 257}, 400),
    )
    for request, status in requests:
        assert api.status("POST", TOKENS, ALICE, json=request) == status, request


def test_tokens_of_others_are_an_operators(api: Server) -> None:
    token_id, _ = api.token(owner="carl")
    assert api.status("GET", TOKENS, ALICE, params={"all": "true"}) == 403
    assert api.status("DELETE", f"{TOKENS}/{token_id}", ALICE) == 404
    everybodys = api.get(TOKENS, all="true")["tokens"]
    assert [one["owner"] for one in everybodys] == ["carl", "admin", "agent", "alice", "bob", "vera"]
    (hers,) = api.done("GET", TOKENS, ALICE)["tokens"]
    assert (hers["owner"], hers["source"]) == ("alice", "file")
    api.refusal("DELETE", f"{TOKENS}/{hers['token_id']}", 400, "--token-file", ALICE)


@on_every_database
def test_role_holds_in_its_project_and_ends_with_it(api: Server) -> None:
    running_agent(api)
    _, carl = api.token(owner="carl")
    jobs, job = "/v1/projects/p/jobs", "/v1/projects/p/jobs/job"
    refused = api.refusal("GET", job, 403, who=carl)["message"]
    assert refused == "You are carl, who has no role in the project p (or it does not exist)."
    assert api.set_role("carl", "viewer") == api.status("GET", job, carl) == 200
    refused = api.refusal("POST", jobs, 403, who=carl, json={})["message"]
    assert refused == "You are carl (viewer of p). POST /v1/projects/p/jobs needs the role submitter."
    assert api.set_role("carl", "admin") == 200
    assert api.status("POST", f"{job}:cancel", carl) == 200, "another's job"
    assert api.status("POST", "/v1/projects/q/jobs", carl, json={}) == 403
    assert api.status("DELETE", f"{MEMBERS}/carl") == 200
    assert api.status("GET", job, carl) == 403
    assert api.status("DELETE", f"{MEMBERS}/carl") == 404


def test_admin_of_a_project_decides_about_it_alone(api: Server) -> None:
    _, carl = api.token(owner="carl")
    api.set_role("carl", "admin")
    for name, role, project, who, status in (
        ("dora", "submitter", "p", carl, 200),
        ("dora", "viewer", "q", carl, 403),
        ("carl", "admin", "*", carl, 403),
        ("dora", "owner", "p", carl, 400),
        ("d o", "viewer", "p", carl, 400),
        ("dora", "viewer", "-", ADMIN, 400),
        ("dora", "viewer", "p", VERA, 403),
    ):
        assert api.set_role(name, role, project, who) == status, (name, role, project)
    projects = {"projects": [{"project": "p", "role": "admin"}], "role": ""}
    assert api.done("GET", "/trainyard/v1/projects", carl) == projects
    api.set_role("dora", "viewer", "*")
    answer = api.done("GET", MEMBERS, carl)
    members = [(one["name"], one["role"], one["given_by"]) for one in answer["members"]]
    assert members == [("carl", "admin", "admin"), ("dora", "submitter", "carl")]
    of_files = [("admin", "admin", ""), ("alice", "submitter", ""), ("bob", "submitter", ""), ("vera", "viewer", "")]
    everywhere = [(one["name"], one["role"], one["given_by"]) for one in answer["everywhere"]]
    assert everywhere == [("dora", "viewer", "admin"), *of_files], "agents are no people"
    assert {one["project"] for one in answer["everywhere"]} == {"*"}
    every = api.get("/trainyard/v1/projects/*/members")
    names = [[one["name"] for one in every[part]] for part in ("members", "everywhere")]
    assert names == [["dora"], [name for name, *_ in of_files]]


def test_stream_ends_with_its_token_and_its_role(api: Server) -> None:
    running_agent(api)
    notifier = api.use_cases.backend.notifier
    with serving(api.app) as url:
        for path, ending in (
            ("/live/", "revoked"),
            ("/live/", "expired"),
            ("/live/", "role"),
            ("/trainyard/v1/projects/p/jobs/job/logs?follow=true", "role"),
        ):
            api.set_role("carl", "viewer")
            token_id, carl = api.token(owner="carl", expires_in_s=1 if ending == "expired" else None)
            session = api.use_cases.sessions.open(f"made:{token_id}", api.clock())
            streams = [Follower(url, path, who).begun() for who in (carl, cookie(url, session), VERA)]
            if ending != "expired":
                api.done("DELETE", f"{TOKENS}/{token_id}" if ending == "revoked" else f"{MEMBERS}/carl")
            for stream in streams[:2]:
                assert stream.end().endswith("event: over\ndata:\n\n"), (path, ending)
            assert not streams[2].over
            eventually(lambda: not any(topic.startswith("person:") for topic in notifier._subscriptions))
