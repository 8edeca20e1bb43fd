"""Limits by caller over HTTP: what is refused, how, and which routes count as streams."""

import re
from pathlib import Path

import httpx

from integration.api.api_support import (
    ADMIN,
    ALICE,
    BOB,
    VERA,
    Clock,
    ScriptedAgent,
    Server,
    eventually,
    running_agent,
    server,
    serving,
)
from trainyard_server.app import ACCESS
from trainyard_server.domain.access.route_access import Access

PARAMETERS = {"project": "p", "job_id": "job"}
QUERY = {"follow": "true", "like": "job", "path": "x", "job": ["p/job", "p/deleted"]}


def test_request_beyond_the_rate_gets_429_with_the_time_to_wait(tmp_path: Path) -> None:
    with server(tmp_path, Clock(), requests_per_s=0.2) as api:
        answers = [api.client.get("/trainyard/v1/me", headers=ALICE) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[-1].headers["Retry-After"] == "5"
        assert answers[-1].json()["error"]["status"] == "RESOURCE_EXHAUSTED"
        page = api.client.get("/", headers=ALICE | {"Accept": "text/html"})
        assert (page.status_code, page.headers["Retry-After"]) == (429, "5")
        assert "Too many requests" in page.text
        assert api.client.get("/trainyard/v1/me", headers=BOB).status_code == 200
        api.clock.advance(5)
        assert api.client.get("/trainyard/v1/me", headers=ALICE).status_code == 200


def test_every_event_stream_is_a_row_that_says_so_and_returns_its_slot(api: Server) -> None:
    """Opens every page, its changes and every other route that reads."""
    running_agent(api)
    paths = [
        re.sub(r"\{(\w+)\}", lambda name: PARAMETERS.get(name[1], "x"), route.path)
        for route in ACCESS.rows
        if route.method == "GET" and route.access not in (Access.NOBODY, Access.AGENT)
    ]
    paths += [f"/live{path}" for path in paths if ACCESS.find("GET", f"/live{path}")]
    found, named = set(), set()
    with serving(api.app) as url, httpx.Client(base_url=url, headers=ADMIN, trust_env=False, timeout=60) as client:
        for path in paths:
            match = ACCESS.find("GET", path)
            assert match is not None
            named |= {path} if match.is_stream else set()
            with client.stream("GET", path, params=QUERY) as answer:
                found |= {path} if answer.headers["content-type"].startswith("text/event-stream") else set()
        eventually(lambda: api.use_cases.limits.streams.open == 0)
    assert found == named
    assert len(named) > 5


def test_reader_with_too_many_streams_is_refused_until_one_ends(tmp_path: Path) -> None:
    with server(tmp_path, Clock(), event_streams=2) as api, serving(api.app) as url:
        client = httpx.Client(base_url=url, headers=VERA, trust_env=False, timeout=60)
        with client, client.stream("GET", "/live/"):
            with client.stream("GET", "/live/cluster"):
                refused = client.get("/live/")
                assert (refused.status_code, refused.headers["Retry-After"]) == (429, "10")
            eventually(lambda: api.use_cases.limits.streams.open == 1)
            with client.stream("GET", "/live/") as answer:
                assert answer.status_code == 200


def test_owner_with_a_full_queue_cannot_submit_and_others_can(tmp_path: Path) -> None:
    with server(tmp_path, Clock(), queued_jobs=2) as api:
        for name in ("a", "b"):
            api.create(name, who=ALICE)
        for query in ({}, {"validateOnly": "true"}):
            refused = api.submit("c", ALICE, params=query)
            assert (refused.status_code, "Retry-After" in refused.headers) == (429, False)
            assert refused.json()["error"]["message"].startswith(
                "alice has 2 queued jobs in the project p, the limit of this server (--queued-jobs)."
            )
        assert api.submit("a", ALICE).status_code == 409  # a repeated submit is told so
        api.create("c", who=ALICE, project="q")
        api.create("c", who=BOB)
        ScriptedAgent(api, cpus=1).sync()
        api.tick()
        api.create("d", who=ALICE)
