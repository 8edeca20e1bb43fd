"""Secrets of a project: who may do what, who gets a value, and what happens without the key."""

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, AGENT, ALICE, VERA, Clock, ScriptedAgent, Server, running_agent, server
from trainyard_protocol.answers.secrets import MAX_SECRETS, MAX_VALUE_BYTES
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.agents import AGENT_KEY
from trainyard_server.capabilities.secrets.secrets import Secrets
from trainyard_server.capabilities.secrets.store import save
from trainyard_server.capabilities.secrets.tables import SecretRow

SECRETS = "/trainyard/v1/projects/p/secrets"
VALUE = 'tökén "of" p'


def put(api: Server, name: str = "TOKEN", value: Any = VALUE, who: dict[str, str] = ADMIN) -> httpx.Response:
    return api.client.put(f"{SECRETS}/{name}", json={"value": value}, headers=who)


def submit(api: Server, *names: str, project: str = "p") -> httpx.Response:
    return api.submit(project=project, secrets=[{"name": name} for name in names])


def run_of(api: Server, *names: str) -> ScriptedAgent:
    """An agent that was given the run of a job with these secrets."""
    agent = ScriptedAgent(api)
    agent.sync()
    assert submit(api, *names).status_code == 200
    agent.turn()
    return agent


def given(api: Server, agent: ScriptedAgent, who: dict[str, str] = AGENT) -> httpx.Response:
    return api.client.get(f"/agent/v1/runs/{agent.run.run_id}/secrets", headers=who)


@on_every_database
def test_admin_sets_submitters_list_and_the_agent_of_a_run_gets_the_value(api: Server) -> None:
    for who, status in ((VERA, 403), (ALICE, 403), (AGENT, 403), (ADMIN, 200)):
        assert put(api, who=who).status_code == status
    assert put(api, "OTHER").status_code == 200
    assert [api.status("GET", SECRETS, who) for who in (VERA, ALICE)] == [403, 200]
    agent = run_of(api, "TOKEN")

    assert given(api, agent).json() == {"values": {"TOKEN": VALUE}}

    other, used = api.done("GET", SECRETS, ALICE)["secrets"]
    assert (other["name"], other["last_used_by"]) == ("OTHER", "")
    assert (used["name"], used["set_by"], used["last_used_by"]) == ("TOKEN", "admin", "job")
    (entry,) = api.get("/trainyard/v1/audit", action="secrets.use")["entries"]
    assert (entry["project"], entry["subject"]) == ("p", "job: TOKEN")
    assert given(api, agent, AGENT | {AGENT_KEY: "1" * 64}).status_code == 403
    agent.start()
    ended = f"/agent/v1/runs/{agent.run.run_id}/secrets"
    agent.exit()
    assert api.status("GET", ended, AGENT) == 404
    assert [api.status("DELETE", f"{SECRETS}/TOKEN", who) for who in (ALICE, ADMIN, ADMIN)] == [403, 200, 404]


def test_value_is_in_no_answer_and_nowhere_on_the_servers_disk(api: Server, tmp_path: Path) -> None:
    value = "a-value-that-nobody-sees"
    assert value not in put(api, value=value).text
    agent = run_of(api, "TOKEN")
    assert value in given(api, agent).text
    agent.start()
    job = "projects/p/jobs/job"
    pages = [f"/{job}", f"/{job}/config", f"/{job}/logs", "/"]
    calls = [f"/trainyard/v1/{job}{rest}" for rest in ("", "/why", "/explain", "/config", "/logs/download")]
    for path in (*pages, *calls, f"/v1/{job}", "/v1/projects/p/jobs", SECRETS, "/trainyard/v1/audit"):
        answer = api.client.get(path, headers=ADMIN)
        assert (answer.status_code, value in answer.text) == (200, False), path
    variables = api.get(f"/trainyard/v1/{job}/explain")["environment"]
    assert variables["TOKEN"] == "***"
    assert value not in agent.response.model_dump_json()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]


def test_bounds_of_names_and_values(api: Server) -> None:
    longest = "é" * (MAX_VALUE_BYTES // 2)
    table: list[tuple[str, Any, int]] = [
        ("_a1", "abcd", 200),
        ("a" * 65, "abcd", 400),
        ("a-b", "abcd", 400),
        ("a", "abc", 400),
        ("a", " abc\n\n", 400),
        ("a", "ab\0cd", 400),
        ("a", longest, 200),
        ("a", longest + "x", 400),
        ("a", 123456789, 400),
        ("a", ["list-of-secrets"], 400),
    ]
    for name, value, status in table:
        answer = put(api, name, value)
        shown = value[0] if isinstance(value, list) else str(value)
        is_shown = shown in answer.text and len(shown) >= 5
        assert (answer.status_code, is_shown) == (status, False), (name, shown[:20])


def test_project_has_at_most_so_many_secrets(api: Server) -> None:
    with api.use_cases.backend.store.write() as writer:
        for number in range(MAX_SECRETS - 1):
            save(writer, "p", f"S{number}", "x", "admin", api.clock())
    # As if it had been made before: the others of this test are no ciphertexts.
    api.use_cases.of(Secrets)._cipher.key_file.write_text("0" * 64)
    assert [put(api, name).status_code for name in ("LAST", "TOO_MANY", "LAST")] == [200, 429, 200]


def test_job_that_refers_to_an_unknown_secret_is_refused_at_submit_and_fails_if_it_is_deleted_later(
    api: Server,
) -> None:
    put(api)
    refused = submit(api, "TOKEN", "MISSING")
    assert (refused.status_code, "has no secret MISSING" in refused.text) == (400, True)
    (violation,) = refused.json()["error"]["details"][0]["fieldViolations"]
    assert violation["field"] == "secrets[1].name"
    assert submit(api, "TOKEN", project="q").status_code == 400, "each project has secrets of its own"

    agent = run_of(api, "TOKEN")
    api.done("DELETE", f"{SECRETS}/TOKEN")
    answer = given(api, agent)
    assert (answer.status_code, answer.json()["error"]["status"]) == (400, "FAILED_PRECONDITION")
    message = answer.json()["error"]["message"]
    assert "no secret TOKEN any more" in message
    agent.exit(code=None, reason=Reason.SECRETS_FAILED, message=message)
    assert api.job()["state"] == "FAILED"
    assert api.job()["errorMessage"].startswith("The replica master 0 could not get its secrets: The project p")


def test_row_that_is_moved_to_another_secret_is_worth_nothing(api: Server) -> None:
    put(api)
    put(api, "OTHER", "another value")
    with api.use_cases.backend.store.write() as writer:
        stolen, mine = (writer.session.get_one(SecretRow, ("p", name)) for name in ("TOKEN", "OTHER"))
        mine.ciphertext = stolen.ciphertext
    agent = run_of(api, "OTHER")
    answer = given(api, agent)
    assert (answer.status_code, "was exchanged" in answer.text) == (400, True)
    agent.start()
    agent.exit()
    assert given(api, running_agent(api, "without", agent=agent)).json() == {"values": {}}


def test_key_that_is_lost_is_not_replaced_while_there_are_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = tmp_path / "keys" / "secrets"
    with server(tmp_path, Clock()) as api:
        assert not key.exists(), "made at the first use"
        put(api)
        content = key.read_bytes()
        assert key.stat().st_mode & 0o777 == 0o600
    key.unlink()
    with caplog.at_level(logging.ERROR), server(tmp_path, Clock()) as api:
        assert f"{key} is missing" in caplog.text
        assert "keys/secrets of the server's data directory, is missing" in put(api, "B").text
        agent = run_of(api, "TOKEN")
        assert "is missing" in given(api, agent).text
        assert not key.exists()
        key.write_text("f" * 64)
        assert "encrypted with another key" in given(api, agent).text
        key.write_bytes(content)
        assert given(api, agent).json() == {"values": {"TOKEN": VALUE}}
        key.unlink()
        api.done("DELETE", f"{SECRETS}/TOKEN")
        assert put(api, "B").status_code == 200, "nothing is lost with a new key"
