"""Calls that are being served while their credential is revoked: they change nothing."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from beds.databases import on_every_database
from integration.api.access.changes import DONE, concrete
from integration.api.access.test_people import TOKENS
from integration.api.api_support import KEY, ScriptedAgent, Server, custom_job, package_job, running_agent, tuning_job
from trainyard_protocol.wire.agents import AGENT_KEY
from trainyard_server.app import ACCESS
from trainyard_server.domain.access.route_access import Access
from trainyard_server.storage.db.base.columns import Table
from trainyard_server.storage.db.base.people_models import AuditRow
from trainyard_server.storage.db.repository import Writer
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.db.tables.audit_trail import current_trail

_P = "/trainyard/v1/projects/p"
FURTHER: Mapping[str, dict[str, Any]] = {
    "jobs.create": {"json": {"jobId": "new", "trainingInput": package_job()}},
    "attachments.create": {"json": {"command": ["true"]}},
    "secrets.use": {},
}
"""Requests of this test, beside those that all have."""

OTHERS: Mapping[str, str] = {
    "google-keys.create": "stores nothing: the key is worth what its token is",
    "sign-in-codes.create": "stores nothing: the code is worth what its token is",
    "sign-in": "nobody calls; the session is worth what its credential is",
    "sign-out": "ends the credential itself",
    "quotas.reload": "reads a file",
    "channels.test": "stores nothing",
    "backups.create": "reads",
    "packages.upload": "a file, not a row",
    "programs.upload": "a file, not a row",
    "objects.write": "in the storage",
    "objects.delete": "in the storage",
    "buckets.create": "in the storage, and noted after that",
    "buckets.update": "in the storage",
    "buckets.delete": "in the storage, and noted after that",
}
"""The actions of all other routes, and why a revocation in flight does not concern them."""


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    """An agent that runs `job`, beside one without runs; and something to change of each kind."""
    api.done("PUT", f"{_P}/secrets/x", json={"value": "a value"})
    agent = running_agent(api, "ended")
    agent.exit()
    api.tick()
    running_agent(api, "job", agent=agent, enableWebAccess=True, secrets=[{"name": "x"}])
    ScriptedAgent(api, "idle").sync()
    api.done("PUT", f"{_P}/views/x", json={"query": "state=FAILED"})
    api.done("PUT", f"{_P}/channels/x", json={"address": "https://example.com/x"})
    assert api.set_role("x", "viewer") == 200
    assert api.set_role("carl", "admin", project="*") == 200
    return agent


def stored(store: Store) -> dict[str, list[str]]:
    """All rows but those of the audit."""
    tables = [table for table in Table.metadata.sorted_tables if table.name != AuditRow.__tablename__]
    with store.read() as reader:
        return {table.name: sorted(map(str, reader.session.execute(select(table)))) for table in tables}


class Gate:
    """Holds the first call that may change something before its transaction begins, and does something meanwhile."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before: dict[str, list[str]] = {}
        """What was stored when the call went on."""
        self._meanwhile: Callable[[], object] | None = None
        write_together = Store.write_together

        @contextmanager
        def held(this: Store, *given: Any) -> Iterator[Writer]:
            trail, meanwhile = current_trail(), self._meanwhile
            if meanwhile is not None and trail is not None and trail.is_due:
                self._meanwhile = None
                Context().run(meanwhile)
                self.before = stored(store)
            with write_together(this, *given) as writer:
                yield writer

        monkeypatch.setattr(Store, "write_together", held)

    def hold(self, meanwhile: Callable[[], object]) -> None:
        self.before, self._meanwhile = {}, meanwhile


@pytest.fixture
def gate(api: Server, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(api.use_cases.backend.store, monkeypatch)


@on_every_database
def test_call_whose_token_is_revoked_in_flight_changes_nothing(api: Server, agent: ScriptedAgent, gate: Gate) -> None:
    wrong = []
    victim, _ = api.token(owner="frida")
    store = api.use_cases.backend.store
    for route in ACCESS.rows:
        if not route.action or route.action in OTHERS or "Jobs/{job_id}" in route.path:
            continue  # jobs of Vertex AI are changed by the use cases of jobs
        action, for_agent = route.action or "", route.access is Access.AGENT
        name = f"{route.method} {route.path}"
        token_id, who = api.token(owner="laptop" if for_agent else "carl", for_agent=for_agent)
        api.status("GET", "/agent/v1/server" if for_agent else "/trainyard/v1/me", who)  # its use is noted
        headers = who | ({AGENT_KEY: KEY.secret} if for_agent else {})
        given = FURTHER[action] if action in FURTHER else DONE[action][1]
        given = {"json": custom_job()} if route.path.endswith("/customJobs") else given
        given = {"json": tuning_job()} if route.path.endswith("/hyperparameterTuningJobs") else given
        names = {"job_id": "ended"} if action == "jobs.delete" else {}
        names |= {"agent": "idle"} if action == "agents.remove" else {}
        path = concrete(route, token_id=victim, run_id=agent.run.run_id, **names)
        gate.hold(partial(api.done, "DELETE", f"{TOKENS}/{token_id}"))
        answer = api.client.request(route.method, path, headers=headers, **given)
        if answer.status_code != 401 or not gate.before or stored(store) != gate.before:
            wrong.append(f"{name}: {answer.status_code} {answer.text}")
        refused = api.get("/trainyard/v1/audit", pageSize=1)["entries"][0]
        if (refused["outcome"], refused["status"]) != ("refused", 401):
            wrong.append(f"{name}: the audit has {json.dumps(refused)}")
    assert not wrong, "\n".join(wrong)


def test_call_changes_nothing_once_its_session_role_or_time_has_ended(
    api: Server, agent: ScriptedAgent, gate: Gate
) -> None:
    use_cases = api.use_cases
    tokens: list[tuple[str, dict[str, str]]] = []

    def by_token() -> dict[str, str]:
        tokens.append(api.token(owner="carl", expires_in_s=60))
        return tokens[-1][1]

    def by_session() -> dict[str, str]:
        session = use_cases.sessions.open(f"made:{api.token(owner='carl')[0]}", api.clock())
        gate.hold(lambda: use_cases.revoked_sessions.revoke(session))
        return {"Cookie": f"trainyard-80={session.value}", "X-CSRF-Token": session.csrf}

    cases: dict[str, tuple[Callable[[], dict[str, str]], Callable[[], object] | None, int]] = {
        "session": (by_session, None, 401),
        "expiry": (by_token, lambda: api.clock.advance(60), 401),
        "another role": (by_token, lambda: api.set_role("carl", "viewer", project="*"), 403),
        "further role": (by_token, lambda: api.set_role("carl", "viewer", project="q"), 200),
    }
    wrong = []
    for name, (credentials, meanwhile, status) in cases.items():
        assert api.set_role("carl", "admin", project="*") == 200
        headers = credentials()
        api.status("GET", "/trainyard/v1/me", headers)
        if meanwhile is not None:
            gate.hold(meanwhile)
        answer = api.client.post(TOKENS, headers=headers, json={"owner": "dora"})
        is_same = stored(use_cases.backend.store) == gate.before
        if (answer.status_code, is_same) != (status, status != 200):
            wrong.append(f"{name}: {answer.status_code} {answer.text}")
    assert not wrong, "\n".join(wrong)


@on_every_database
def test_revoking_a_token_names_and_can_end_what_was_made_with_it(api: Server) -> None:
    assert api.set_role("carl", "admin", project="*") == 200
    first, carl = api.token(owner="carl")
    second, dora = api.token(who=carl, owner="dora")
    third, _ = api.token(who=dora)
    joins, _ = api.token(who=carl, owner="laptop", for_agent=True)
    over, _ = api.token(who=carl, owner="carl", expires_in_s=1)
    others, _ = api.token(owner="carl")
    api.clock.advance(2)
    listed = {token["token_id"]: token["made_with"] for token in api.get(TOKENS, all="true")["tokens"]}
    file_token = listed[first]
    assert file_token.startswith("file-")
    parents = [listed[token] for token in (second, third, joins, over, others)]
    assert parents == [first, second, first, first, file_token]

    left = api.done("DELETE", f"{TOKENS}/{second}")["made"]
    assert [token["token_id"] for token in left["tokens"]] == [third]
    found = api.get(f"{TOKENS}/{first}/made")
    assert {token["token_id"] for token in found["tokens"]} == {third, joins}, "also what a revoked one has made"
    ended = api.done("DELETE", f"{TOKENS}/{first}", params={"recursive": "true"})
    assert {token["revoked_by"] for token in (ended, *ended["made"]["tokens"])} == {"admin"}
    valid = [token["token_id"] for token in api.get(TOKENS, all="true")["tokens"] if not token["revoked_at"]]
    assert {first, second, third, joins} & {*valid} == set()
    assert {over, others} <= {*valid}

    assert api.status("DELETE", f"{TOKENS}/{file_token}") == 400
    of_file = api.done("DELETE", f"{TOKENS}/{file_token}", params={"recursive": "true"})
    assert (of_file["source"], of_file["revoked_at"]) == ("file", None)
    assert others in {token["token_id"] for token in of_file["made"]["tokens"]}
    assert api.get(f"{TOKENS}/{file_token}/made")["tokens"] == []


def test_tokens_of_others_that_were_made_with_ones_own_are_an_operators(api: Server) -> None:
    assert api.set_role("carl", "admin", project="*") == 200
    token_id, carl = api.token(owner="carl")
    _, dora = api.token(who=carl, owner="dora")
    own, again = api.token(who=carl)
    api.done("DELETE", "/trainyard/v1/projects/*/members/carl")
    assert api.status("GET", f"{TOKENS}/{token_id}/made", dora) == 404
    answer = api.done("DELETE", f"{TOKENS}/{token_id}", again, params={"recursive": "true"})
    assert ([token["token_id"] for token in answer["made"]["tokens"]], answer["made"]["others"]) == ([own], 1)
    assert api.status("GET", "/trainyard/v1/me", again) == 401
    assert api.status("GET", "/trainyard/v1/me", dora) == 200
