"""Tokens that are made while the server runs, roles in projects, and what a revocation ends."""

from typing import Any

import httpx
import pytest

from beds.databases import on_every_database
from integration.api.access.test_session_streams import Follower, cookie
from integration.api.api_support import ADMIN, ALICE, VERA, Clock, Server, eventually, running_agent, serving
from trainyard_protocol.views.people import TOKEN_PREFIX
from trainyard_server.storage.db.base.models import TokenRow

TOKENS = "/trainyard/v1/tokens"
MEMBERS = "/trainyard/v1/projects/p/members"
DAY_S = 86400


def call(api: Server, method: str, path: str, who: dict[str, str], **given: Any) -> httpx.Response:
    return api.client.request(method, path, headers=who, **given)


def made(api: Server, who: dict[str, str] = ADMIN, **request: Any) -> tuple[str, dict[str, str]]:
    """The id of a new token, and the header of its owner."""
    answer = call(api, "POST", TOKENS, who, json=request)
    assert answer.status_code == 200, answer.text
    return answer.json()["token"]["token_id"], {"Authorization": f"Bearer {answer.json()['secret']}"}


def give(api: Server, name: str, role: str, project: str = "p", who: dict[str, str] = ADMIN) -> int:
    path = f"/trainyard/v1/projects/{project}/members/{name}"
    return call(api, "PUT", path, who, json={"role": role}).status_code


@on_every_database
def test_made_token_works_at_once_until_it_is_revoked(api: Server) -> None:
    assert give(api, "carl", "submitter") == 200
    token_id, carl = made(api, owner="carl", description="laptop")
    secret = carl["Authorization"].split()[1]
    assert secret.startswith(TOKEN_PREFIX)
    assert api.client.get("/trainyard/v1/me", headers=carl).json() == {
        "role": "submitter",
        "name": "carl",
        "projects": {"p": "submitter"},
    }
    with api.use_cases.backend.store.read() as reader:
        row = reader.session.get(TokenRow, token_id)
        assert row is not None
        assert secret not in str(vars(row))
    (listed,) = call(api, "GET", TOKENS, carl).json()["tokens"]
    assert (listed["description"], listed["created_by"], listed["last_used_at"]) == (
        "laptop",
        "admin",
        "2026-11-20T12:00:00Z",
    )
    assert call(api, "DELETE", f"{TOKENS}/{token_id}", carl).json()["revoked_by"] == "carl"
    assert call(api, "GET", "/trainyard/v1/me", carl).status_code == 401
    assert call(api, "DELETE", f"{TOKENS}/{token_id}", ADMIN).json()["revoked_by"] == "carl", "the first time stays"


def test_last_use_is_written_once_a_minute(api: Server, clock: Clock) -> None:
    token_id, dora = made(api, owner="dora")
    times = []
    for _ in range(4):
        call(api, "GET", "/trainyard/v1/me", dora)
        with api.use_cases.backend.store.read() as reader:
            row = reader.session.get(TokenRow, token_id)
            assert row is not None
            assert row.last_used_at is not None
            times.append((row.last_used_at - clock()).total_seconds())
        clock.advance(20)
    assert times == [0, -20, -40, 0]


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
        assert call(api, "POST", TOKENS, ALICE, json=request).status_code == status, request


def test_tokens_of_others_are_an_operators(api: Server) -> None:
    token_id, _ = made(api, owner="carl")
    assert call(api, "GET", TOKENS, ALICE, params={"all": "true"}).status_code == 403
    assert call(api, "DELETE", f"{TOKENS}/{token_id}", ALICE).status_code == 404
    everybodys = call(api, "GET", TOKENS, ADMIN, params={"all": "true"}).json()["tokens"]
    assert [one["owner"] for one in everybodys] == ["carl", "admin", "agent", "alice", "bob", "vera"]
    hers = call(api, "GET", TOKENS, ALICE).json()["tokens"]
    assert [(one["owner"], one["source"]) for one in hers] == [("alice", "file")]
    answer = call(api, "DELETE", f"{TOKENS}/{hers[0]['token_id']}", ALICE)
    assert (answer.status_code, "--token-file" in answer.text) == (400, True)


@on_every_database
def test_role_holds_in_its_project_and_ends_with_it(api: Server) -> None:
    running_agent(api)
    _, carl = made(api, owner="carl")
    jobs, job = "/v1/projects/p/jobs", "/v1/projects/p/jobs/job"
    refused = call(api, "GET", job, carl)
    assert refused.json()["error"]["message"] == (
        "You are carl, who has no role in the project p (or it does not exist)."
    )
    assert give(api, "carl", "viewer") == 200
    assert call(api, "GET", job, carl).status_code == 200
    answer = call(api, "POST", jobs, carl, json={})
    assert answer.json()["error"]["message"] == (
        "You are carl (viewer of p). POST /v1/projects/p/jobs needs the role submitter."
    )
    assert give(api, "carl", "admin") == 200
    assert call(api, "POST", f"{job}:cancel", carl).status_code == 200, "another's job"
    assert call(api, "POST", "/v1/projects/q/jobs", carl, json={}).status_code == 403
    assert call(api, "DELETE", f"{MEMBERS}/carl", ADMIN).status_code == 200
    assert call(api, "GET", job, carl).status_code == 403
    assert call(api, "DELETE", f"{MEMBERS}/carl", ADMIN).status_code == 404


def test_admin_of_a_project_decides_about_it_alone(api: Server) -> None:
    _, carl = made(api, owner="carl")
    give(api, "carl", "admin")
    assert give(api, "dora", "submitter", who=carl) == 200
    assert give(api, "dora", "viewer", project="q", who=carl) == 403
    assert give(api, "carl", "admin", project="*", who=carl) == 403
    assert give(api, "dora", "owner", who=carl) == 400
    assert give(api, "d o", "viewer", who=carl) == 400
    assert give(api, "dora", "viewer", project="-", who=ADMIN) == 400
    assert give(api, "dora", "viewer", who=VERA) == 403
    members = call(api, "GET", MEMBERS, carl).json()["members"]
    assert [(one["name"], one["role"], one["given_by"]) for one in members] == [
        ("carl", "admin", "admin"),
        ("dora", "submitter", "carl"),
    ]
    assert call(api, "GET", "/trainyard/v1/projects", carl).json() == {
        "projects": [{"project": "p", "role": "admin"}],
        "role": "",
    }


def test_members_are_listed_beside_those_with_a_role_in_all_projects(api: Server) -> None:
    give(api, "carl", "admin")
    give(api, "dora", "viewer", project="*")
    answer = call(api, "GET", MEMBERS, made(api, owner="carl")[1]).json()
    assert [one["name"] for one in answer["members"]] == ["carl"]
    of_files = [("admin", "admin", ""), ("alice", "submitter", ""), ("bob", "submitter", ""), ("vera", "viewer", "")]
    everywhere = [(one["name"], one["role"], one["given_by"]) for one in answer["everywhere"]]
    assert everywhere == [("dora", "viewer", "admin"), *of_files], "agents are no people"
    assert {one["project"] for one in answer["everywhere"]} == {"*"}
    every = call(api, "GET", "/trainyard/v1/projects/*/members", ADMIN).json()
    assert [[one["name"] for one in every[part]] for part in ("members", "everywhere")] == [
        ["dora"],
        [name for name, *_ in of_files],
    ]


@pytest.mark.parametrize(
    ("path", "ending"),
    [
        ("/live/", "revoked"),
        ("/live/", "expired"),
        ("/live/", "role"),
        ("/trainyard/v1/projects/p/jobs/job/logs?follow=true", "role"),
    ],
)
def test_stream_ends_with_its_token_and_its_role(api: Server, path: str, ending: str) -> None:
    running_agent(api)
    give(api, "carl", "viewer")
    expires_in_s = 1 if ending == "expired" else None
    token_id, carl = made(api, owner="carl", expires_in_s=expires_in_s)
    session = api.use_cases.sessions.open(f"made:{token_id}", api.clock())
    with serving(api.app) as url:
        streams = [Follower(url, path, carl).begun(), Follower(url, path, cookie(url, session)).begun()]
        others = Follower(url, path, VERA).begun()
        if ending == "revoked":
            call(api, "DELETE", f"{TOKENS}/{token_id}", ADMIN)
        elif ending == "role":
            call(api, "DELETE", f"{MEMBERS}/carl", ADMIN)
        for stream in streams:
            assert stream.end().endswith("event: over\ndata:\n\n")
        assert not others.over
        notifier = api.use_cases.backend.notifier
        eventually(lambda: not any(topic.startswith("person:") for topic in notifier._subscriptions))
