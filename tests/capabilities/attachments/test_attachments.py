"""Commands in replicas and their ports at the server: who may, how the two ends meet, and what ends them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from integration.api.api_support import (
    ADMIN,
    AGENT,
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
from trainyard_protocol.errors import PermissionDenied, TrainyardError, Unauthenticated
from trainyard_protocol.wire.agents import AGENT_KEY
from trainyard_protocol.wire.attachments import ENDED, LOST, REFUSED
from trainyard_server.capabilities.attachments import attachments
from trainyard_server.storage.db.tables.audit_trail import CheckAgain

CHIEF = "master-replica-0"
ATTACHMENTS = "/trainyard/v1/projects/p/jobs/job/attachments"
COMMAND = {"command": ["nvidia-smi", "-l", "1"]}


def run_job(api: Server, **training_input: Any) -> ScriptedAgent:
    """An agent that runs a job of alice's."""
    return running_agent(api, who=ALICE, **training_input)


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    return run_job(api, enableWebAccess=True)


@pytest.fixture
def url(api: Server) -> Iterator[str]:
    with serving(api.app) as url:
        yield f"ws{url.removeprefix('http')}"


def ask(api: Server, who: dict[str, str] = ALICE, body: dict[str, Any] | None = None) -> httpx.Response:
    return api.client.post(ATTACHMENTS, json=body or COMMAND, headers=who)


def stream(url: str, attachment_id: str, who: dict[str, str], number: int = 0) -> ClientConnection:
    area = "agent" if AGENT_KEY in who else "trainyard"
    path = f"/{area}/v1/attachments/{attachment_id}/streams/{number}"
    return opened(url + path, who)


def opened(url: str, who: dict[str, str]) -> ClientConnection:
    return connect(url, additional_headers=who, proxy=None, compression=None).__enter__()


@contextmanager
def ends(api: Server, url: str, attachment_id: str = "") -> Iterator[tuple[ClientConnection, ClientConnection]]:
    """The client's and the agent's end of stream 0."""
    attachment_id = attachment_id or ask(api).json()["id"]
    with stream(url, attachment_id, ALICE) as client, stream(url, attachment_id, AGENT) as agent:
        yield client, agent


def close_of(connection: ClientConnection) -> tuple[int | None, str | None]:
    with suppress(ConnectionClosed):
        while True:
            connection.recv(60)
    return connection.close_code, connection.close_reason


def orders(agent: ScriptedAgent) -> list[str]:
    return [order.id for order in agent.sync().attachments]


def test_owner_and_admins_attach_and_nobody_else_does(api: Server, agent: ScriptedAgent, url: str) -> None:
    receipt = ask(api).json()
    assert (receipt["task"], receipt["agent"]) == (CHIEF, "laptop")
    assert orders(agent) == [], "it begins once its caller has come"
    with stream(url, receipt["id"], ALICE):
        eventually(lambda: orders(agent))
        (order,) = agent.response.attachments
    expected = (receipt["id"], agent.run.run_id, CHIEF, COMMAND["command"])
    assert (order.id, order.run_id, order.task, list(order.command)) == expected
    assert ask(api, ADMIN).status_code == 200
    assert [ask(api, who).status_code for who in (BOB, VERA, AGENT, {})] == [403, 403, 403, 401]
    rows = api.get("/trainyard/v1/audit", action="attachments.create")["entries"]
    seen = [(row["actor"], row["outcome"], row["subject"]) for row in rows]
    words = f"job/{CHIEF}: nvidia-smi -l 1"
    assert {("alice", "done", words), ("admin", "done", words)} <= set(seen)
    assert {actor for actor, outcome, _ in seen if outcome == "refused"} >= {"bob", "vera"}


def test_job_must_allow_it_unless_the_server_is_of_one_user(tmp_path: Path) -> None:
    with server(tmp_path / "many", Clock()) as api:
        run_job(api)
        api.refusal("POST", ATTACHMENTS, 400, "--enable-web-access", ALICE, json=COMMAND)
    with server(tmp_path / "single", Clock(), one_user=True) as api:
        run_job(api)
        assert ask(api).status_code == 200


def test_bad_request_says_what_is_allowed(api: Server, agent: ScriptedAgent) -> None:
    table: list[tuple[dict[str, Any], str]] = [
        ({"command": ["true"], "ports": [80]}, "give one of the two"),
        ({"task": CHIEF}, "give one of the two"),
        ({"command": ["true"], "task": "worker-replica-7"}, f"has no worker-replica-7. Its replicas: {CHIEF}"),
        ({"command": ["true"], "task": "nobody"}, "'nobody' is no replica of a job"),
        ({"ports": [0]}, "ports.0"),
        ({"ports": list(range(1, 19))}, "ports"),
        ({"command": ["x" * 70_000]}, "65536 characters"),
        ({"command": ["a\0b"]}, "NUL"),
    ]
    for body, says in table:
        assert says in api.refusal("POST", ATTACHMENTS, 400, who=ALICE, json=body)["message"]
    assert agent.sync().attachments == ()


def test_replica_that_does_not_run_has_no_attachment(api: Server, agent: ScriptedAgent, url: str) -> None:
    order = ask(api).json()["id"]
    with stream(url, order, ALICE):
        eventually(lambda: orders(agent) == [order])
        agent.exit(code=1)
        assert orders(agent) == []
    api.refusal("POST", ATTACHMENTS, 400, "does not run", ALICE, json=COMMAND)
    api.refusal("POST", ATTACHMENTS.replace("jobs/job", "jobs/other"), 404, who=ALICE, json=COMMAND)
    assert "webAccessUris" not in api.job()["trainingOutput"]


def test_refusal_of_the_agent_and_a_lost_one_reach_the_client(api: Server, agent: ScriptedAgent, url: str) -> None:
    with ends(api, url) as (client, served):
        served.close(REFUSED, "There is no such program.")
        assert close_of(client) == (REFUSED, "There is no such program.")
    with ends(api, url) as (client, served):
        served.socket.close()
        assert close_of(client) == (LOST, "The connection to the agent was lost.")
    eventually(lambda: agent.sync().attachments == ())


def test_streams_of_ports_meet_by_number_and_end_with_the_first(api: Server, agent: ScriptedAgent, url: str) -> None:
    attachment_id = ask(api, body={"ports": [8888]}).json()["id"]
    with ends(api, url, attachment_id) as (client, served), ThreadPoolExecutor() as pool:
        client.send('{"connect":[1,8888]}')
        assert served.recv(60) == '{"connect":[1,8888]}'
        opened = [pool.submit(stream, url, attachment_id, who, 1) for who in (ALICE, AGENT)]
        mine, theirs = (future.result() for future in opened)
        mine.send(b"\0GET /")
        assert theirs.recv(60) == b"\0GET /"
        again = stream(url, attachment_id, ALICE, 1)
        assert close_of(again) == (REFUSED, "This stream is open already.")
        client.close()
        assert close_of(served)[0] == ENDED
        assert close_of(theirs)[0] == REFUSED
        assert close_of(mine)[0] == REFUSED


def test_stream_is_for_its_caller_and_its_agent_alone(api: Server, agent: ScriptedAgent, url: str) -> None:
    attachment_id = ask(api).json()["id"]
    another = {**AGENT, AGENT_KEY: "1" * 64}
    for who in (BOB, ADMIN):
        reason = "This shell, command or port forward does not exist or has ended."
        assert close_of(stream(url, attachment_id, who)) == (REFUSED, reason)
    assert "belongs to an agent with another key" in str(close_of(stream(url, attachment_id, another))[1])
    path = f"attachments/{attachment_id}/streams/0"
    for who, asked, code in (
        ({}, path, 401),
        ({"Authorization": "Bearer wrong"}, path, 401),
        (AGENT, path, 403),
        (ALICE, "nothing", 404),
    ):
        with pytest.raises(InvalidStatus) as refused:
            opened(f"{url}/trainyard/v1/{asked}", who)
        assert refused.value.response.status_code == code


def test_more_than_the_limit_of_a_caller_is_refused(tmp_path: Path) -> None:
    with server(tmp_path, clock := Clock(), attachments=2) as api:
        run_job(api, enableWebAccess=True)
        first, _ = (ask(api) for _ in range(2))
        api.refusal("POST", ATTACHMENTS, 429, "has 2 shells", ALICE, json=COMMAND)
        assert ask(api, ADMIN).status_code == 200
        path = f"/trainyard/v1/attachments/{first.json()['id']}"
        for who, status in ((BOB, 429), (ALICE, 200)):  # to bob it is not there: nothing happens
            api.done("DELETE", path, who)
            assert ask(api).status_code == status
        clock.advance(200)  # their server was killed: nobody keeps them alive
        assert ask(api).status_code == 200


def test_agent_that_does_not_come_is_named(
    api: Server, agent: ScriptedAgent, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachments, "MEET_S", 0.05)
    with stream(url, ask(api).json()["id"], ALICE) as client:
        assert close_of(client) == (REFUSED, "The agent laptop did not answer within 0.05 s.")
    eventually(lambda: agent.sync().attachments == ())


def test_idle_one_ends(tmp_path: Path) -> None:
    with server(tmp_path, Clock(), attachment_idle_s=0.05) as api, serving(api.app) as http:
        agent = run_job(api, enableWebAccess=True)
        with ends(api, f"ws{http.removeprefix('http')}") as (client, served):
            reason = (REFUSED, "Nothing came or went for 0.05 s, the limit of this server.")
            assert [close_of(client), close_of(served)] == [reason, reason]
        eventually(lambda: agent.sync().attachments == ())


MEMBER = "/trainyard/v1/projects/p/members/alice"
TOKEN_OF_ALICE = "/trainyard/v1/tokens/{token}"


def alices(api: Server) -> tuple[dict[str, str], str]:
    """The header and the id of a new token of alice's, who is a submitter."""
    assert api.set_role("alice", "submitter") == 200
    token_id, who = api.token(ALICE, description="laptop")
    return who, token_id


def test_revoked_token_and_lost_role_end_its_streams(api: Server, agent: ScriptedAgent, url: str) -> None:
    for ending in (TOKEN_OF_ALICE, MEMBER):
        who, token_id = alices(api)
        attachment_id = ask(api, who).json()["id"]
        with stream(url, attachment_id, who) as client, stream(url, attachment_id, AGENT) as served:
            client.send(b"\0typed")
            assert served.recv(60) == b"\0typed"
            api.done("DELETE", ending.format(token=token_id))
            assert close_of(client) == (REFUSED, "The token has expired or was revoked, or its owner has other roles.")
        eventually(lambda: orders(agent) == [])


def test_attachment_that_was_asked_for_begins_only_for_who_still_may(
    api: Server, agent: ScriptedAgent, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the role or the token ends while the person's end is being connected."""
    begin = attachments.Attachments.begin
    refusals: list[type[TrainyardError]] = []
    who, token_id = alices(api)
    without_role, role_in_flight, token_in_flight = (ask(api, who).json()["id"] for _ in range(3))

    def end(path: str) -> None:
        api.done("DELETE", path)

    def held(this: attachments.Attachments, attachment_id: str, check_again: CheckAgain) -> None:
        end(MEMBER if attachment_id == role_in_flight else TOKEN_OF_ALICE.format(token=token_id))
        try:
            begin(this, attachment_id, check_again)
        except TrainyardError as error:
            refusals.append(type(error))
            raise

    monkeypatch.setattr(attachments.Attachments, "begin", held)
    end(MEMBER)
    assert "belongs to alice" in str(close_of(stream(url, without_role, who))[1])
    alices(api)
    for attachment_id in (role_in_flight, token_in_flight):
        assert close_of(stream(url, attachment_id, who))[0] == REFUSED
        alices(api)
    eventually(lambda: refusals == [PermissionDenied, Unauthenticated])
    assert orders(agent) == []
