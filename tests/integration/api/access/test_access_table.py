"""The access table: every route is in it, and it is right for every caller."""

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from integration.api.api_support import ADMIN as OPERATOR
from integration.api.api_support import (
    AGENT,
    ALICE,
    BOB,
    Clock,
    ScriptedAgent,
    Server,
    custom_job,
    of_custom_job,
    server,
    tuning_job,
)
from integration.api.api_support import TOKENS as SHARED_TOKENS
from trainyard_protocol.wire.agents import AGENT_KEY
from trainyard_server.api.middleware.authentication import Authentication
from trainyard_server.api.routing import Router
from trainyard_server.app import ACCESS, ROUTERS
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.permissions import ALL_PROJECTS, Role, Token
from trainyard_server.domain.access.route_access import Access, Route
from trainyard_server.domain.access.sessions import Sessions
from trainyard_server.routes import add_routes
from trainyard_server.services.people.guess_limits import GuessLimits
from trainyard_server.services.people.principals import Principals, RevokedSessions
from trainyard_server.storage.db.base.people_models import TokenRow
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.db.tables import people
from trainyard_server.storage.events.notifier import Notifier

TOKENS = (*SHARED_TOKENS, Token(Role.METRICS, "prometheus", "prometheus-secret"))
NOW = datetime(2026, 11, 21, 15, 0, tzinfo=UTC)
PROJECT = "p"

VIEWER = {Access.NOBODY, Access.PERSON, Access.VIEWER}
SUBMITTER = VIEWER | {Access.SUBMITTER}
ADMIN = SUBMITTER | {Access.ADMIN}
EVERYWHERE = {
    Role.VIEWER: VIEWER,
    Role.SUBMITTER: SUBMITTER,
    Role.ADMIN: ADMIN | {Access.OPERATOR, Access.METRICS},
    Role.AGENT: {Access.NOBODY, Access.AGENT},
    Role.METRICS: {Access.NOBODY, Access.METRICS},
}


@dataclass(frozen=True)
class Person:
    """A person with a token that was made while the server ran. `may`: the accesses in PROJECT."""

    name: str
    roles: dict[str, Role]
    may: set[Access]
    expires_at: datetime | None = None
    revoked: bool = False
    for_agent: bool = False

    @property
    def secret(self) -> str:
        return f"trainyard_{self.name}"


NOBODY = {Access.NOBODY}
MADE = (
    Person("without-role", {}, {Access.NOBODY, Access.PERSON}),
    Person("viewer", {PROJECT: Role.VIEWER}, VIEWER),
    Person("submitter", {PROJECT: Role.SUBMITTER}, SUBMITTER),
    Person("admin-here", {PROJECT: Role.ADMIN}, ADMIN),
    Person("admin-elsewhere", {"other": Role.ADMIN}, {Access.NOBODY, Access.PERSON}),
    Person("operator", {ALL_PROJECTS: Role.ADMIN}, EVERYWHERE[Role.ADMIN]),
    Person("valid", {PROJECT: Role.VIEWER}, VIEWER, expires_at=NOW + timedelta(seconds=1)),
    Person("expired", {PROJECT: Role.ADMIN}, NOBODY, expires_at=NOW),
    Person("revoked", {ALL_PROJECTS: Role.ADMIN}, NOBODY, revoked=True),
    Person("made-agent", {}, EVERYWHERE[Role.AGENT], for_agent=True),
    Person("made-agent-with-role", {PROJECT: Role.ADMIN}, EVERYWHERE[Role.AGENT], for_agent=True),
)


def test_route_that_does_not_say_who_may_call_it_stops_the_start(tmp_path: Path) -> None:
    with server(tmp_path, Clock()) as api:
        app = api.app
    app.add_api_route("/trainyard/v1/open", lambda: None, methods=["GET"])
    with pytest.raises(ValueError, match="GET /trainyard/v1/open does not say who may call it"):
        add_routes(app, ROUTERS, ACCESS)
    with pytest.raises(ValueError, match="POST /x needs an action for the audit"):
        Router().add("POST", "/x", Access.NOBODY, "something", None)


async def _inside(scope: Any, receive: Any, send: Any) -> None:
    """Application behind the authentication: answers 204."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@dataclass(frozen=True)
class Gate:
    """The authentication before an application that answers 204."""

    app: Authentication
    sessions: Sessions

    async def status(self, route: Route, headers: dict[str, str]) -> int:
        """The answer to the call; for a page with changes also that to the call for them, which must be the same."""
        concrete = re.sub(r"\{project\}", PROJECT, route.path)
        concrete = re.sub(r"\{[^}]*\}", "x", concrete)
        paths = [concrete, f"/live{concrete}"] if route.has_changes else [concrete]
        answers = {await self._answer(route.method, path, headers) for path in paths}
        return answers.pop() if len(answers) == 1 else 0

    async def _answer(self, method: str, path: str, headers: dict[str, str]) -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        given = [(name.lower().encode(), value.encode()) for name, value in {"Host": "server", **headers}.items()]
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
        scope |= {"headers": given, "scheme": "http", "server": ("server", 80), "client": ("127.0.0.1", 1)}
        await self.app(scope, receive, send)
        return int(sent[0]["status"])

    async def mistakes(self, who: str, headers: dict[str, str], may: set[Access], changes: bool = True) -> list[str]:
        """Every route that these headers open although they must not, or do not open although they must. Without
        `changes` only routes that change nothing, and those for all, are to open."""
        wrong = []
        for route in ACCESS.rows:
            answer = await self.status(route, headers)
            right = route.access in may and (changes or route.method == "GET" or route.access is Access.NOBODY)
            if answer not in ({204} if right else {401, 403}):
                wrong.append(f"{who}: {route.method} {route.path} gives {answer}")
        return wrong


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    store = Store.at(tmp_path_factory.mktemp("gate"), durable=False)
    with store.write() as writer:
        for person in MADE:
            _add(writer, person)
    revoked = RevokedSessions(store, Notifier(), lambda: NOW)
    principals = Principals(store, TOKENS, revoked, Notifier(), lambda: NOW)
    sessions = Sessions(b"key")
    guesses = GuessLimits(itertools.count(step=60.0).__next__)  # none is one too many
    yield Gate(Authentication(_inside, ACCESS, sessions, principals, guesses, lambda: NOW), sessions)
    store.close()


def _add(writer: Any, person: Person) -> None:
    row = TokenRow(
        token_id=person.name,
        digest=people.digest_of(person.secret),
        owner=person.name,
        for_agent=person.for_agent,
        created_at=NOW,
        created_by="admin",
        expires_at=person.expires_at,
        revoked_at=NOW if person.revoked else None,
    )
    people.add_token(writer, row)
    for project, role in person.roles.items():
        people.set_role(writer, project, person.name, role, "admin", NOW)


async def test_token_has_the_permissions_of_the_table(gate: Gate) -> None:
    wrong = await gate.mistakes("nobody", {}, NOBODY)
    for secret in ("wrong", "trainyard_wrong"):
        wrong += await gate.mistakes(secret, {"Authorization": f"Bearer {secret}"}, NOBODY)
    callers = [(token.name, token.secret, EVERYWHERE[token.role]) for token in TOKENS]
    callers += [(person.name, person.secret, person.may) for person in MADE]
    for name, secret, may in callers:
        wrong += await gate.mistakes(name, {"Authorization": f"Bearer {secret}"}, may)
    assert not wrong, "\n".join(wrong)


async def test_session_has_the_permissions_of_its_token_and_needs_csrf_for_changes(gate: Gate) -> None:
    wrong = []
    callers = [
        (token.name, token.credential, EVERYWHERE[token.role]) for token in TOKENS if token.role is not Role.AGENT
    ]
    callers += [(person.name, f"made:{person.name}", person.may) for person in MADE]
    for name, credential, may in callers:
        session = gate.sessions.open(credential, NOW)
        cookie = {"Cookie": f"trainyard-80={session.value}"}
        wrong += await gate.mistakes(name, {**cookie, "X-CSRF-Token": session.csrf}, may)
        if name in ("admin", "operator", "submitter"):
            wrong += await gate.mistakes(f"{name} without the page", cookie, may, changes=False)
    assert not wrong, "\n".join(wrong)


async def test_changed_token_ends_its_session(gate: Gate) -> None:
    changed = Token(Role.ADMIN, "admin", "another-secret")
    session = gate.sessions.open(changed.credential, NOW)
    assert not await gate.mistakes("changed", {"Cookie": f"trainyard-80={session.value}"}, NOBODY)


def test_what_is_anothers_is_refused(api: Server) -> None:
    """Rows of `own`: the same calls by the owner of a job and the agent of a run, and by another of the role."""
    package = api.upload(name="x-1.tar.gz", who=ALICE)["uri"]
    job = of_custom_job(custom_job(packageUris=[package]), "job", "here")
    api.done("POST", "/v1/projects/p/jobs", ALICE, json=job)
    agent = ScriptedAgent(api)
    agent.sync()
    agent.begin()
    names = {
        "project": "p",
        "job_id": "job",
        "location": "here",
        "run_id": agent.run.run_id,
        "task": "master-replica-0",
        "sha256": hashlib.sha256(b"package").hexdigest(),
        "filename": "x-1.tar.gz",
    }
    tuned = api.done("POST", "/v1/projects/p/locations/here/hyperparameterTuningJobs", ALICE, json=tuning_job())
    agent.turn()  # it runs, too, and does not end at once when it is cancelled
    another = AGENT | {AGENT_KEY: AgentKey("1" * 64).secret}
    bodies = {"PATCH": {"labels": {}}, "POST": {"start": 0}, "PUT": {"note": "x"}}
    answers = {}
    for route in (route for route in ACCESS.rows if route.own):
        people = (ALICE, BOB, OPERATOR) if route.access is Access.SUBMITTER else (AGENT, another)
        is_tuning = "/hyperparameterTuningJobs/" in route.path
        path = route.path.format_map(names | ({"job_id": tuned["name"].rpartition("/")[2]} if is_tuning else {}))
        body = bodies.get(route.method) if not path.endswith(":cancel") else None
        params = {"updateMask": "labels"} if route.method == "PATCH" else {}
        calls = [api.client.request(route.method, path, params=params, json=body, headers=who) for who in people]
        answers[f"{route.method} {route.path}"] = [call.status_code for call in calls]
    assert len(answers) >= 5
    for call, (owners, others, *operators) in answers.items():
        assert others in (403, 404), (call, others)
        assert {owners, *operators} <= {200, 400}, (call, owners, operators)  # 400: the job has not ended
