"""Tables of open pages: what each change makes them read, and that they show what a new page shows."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from sqlalchemy import event

from integration.api.api_support import (
    ADMIN,
    ALICE,
    BOB,
    VERA,
    ScriptedAgent,
    Server,
    eventually,
    running_agent,
    serving,
)
from trainyard_server.services.views.job_search import JobSearchRequest
from trainyard_server.services.views.live_table import LiveTable
from trainyard_server.services.views.run_table import RunTable
from trainyard_server.storage.events.notifier import JobChanges, progress_topic

QUESTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"states": ("FAILED", "SUCCEEDED"), "order": "-ended"},
    {"order": "state"},
    {"order": "-metrics.loss"},
    {"filter": "metrics.loss<0.5"},
    {"filter": "note:again OR state=RUNNING"},
    {"attention": True},
    {"project": "q", "owner": "bob", "states": ("RUNNING",)},
    {"labels": ("team=vision",)},
)


class Pages:
    """Open pages, and the topics that were published since they were read."""

    def __init__(self, api: Server, questions: Sequence[dict[str, Any]]) -> None:
        self._api = api
        self._topics: set[str] = set()
        api.use_cases.backend.notifier.listen(self._topics.update)
        self.tables = [self._table(question) for question in questions]
        for table in self.tables:
            table.read()

    def _table(self, question: dict[str, Any]) -> LiveTable:
        cases = self._api.use_cases
        asked = JobSearchRequest(**question)
        return LiveTable(cases.backend, cases.run_tables, cases.recent_jobs, None, asked, ["job", "metrics.loss"])

    def read_again(self) -> list[RunTable | None]:
        changes = JobChanges.among(self._topics)
        self._topics.clear()
        return [table.read_again(changes) for table in self.tables]

    @contextmanager
    def queries(self) -> Iterator[list[str]]:
        seen: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if statement.startswith(("SELECT", "WITH")):
                seen.append(statement)

        engine = self._api.use_cases.backend.store._engine
        event.listen(engine, "before_cursor_execute", note)
        try:
            yield seen
        finally:
            event.remove(engine, "before_cursor_execute", note)


def submit(api: Server, name: str, project: str = "p", who: dict[str, str] = ALICE, **labels: str) -> None:
    api.create(name, who=who, project=project, labels=labels)


def report(api: Server, agent: ScriptedAgent, step: int, loss: float) -> None:
    agent.log(f'{{"event": "progress", "step": {step}, "steps": 100, "loss": {loss}}}')
    backend = api.use_cases.backend
    backend.notifier.publish(*(f"progress:{key}" for key in backend.progress.flush()))


def test_open_pages_show_after_any_changes_what_a_new_page_shows(api: Server) -> None:
    chance = random.Random(7)
    pages = Pages(api, QUESTIONS)
    agent = ScriptedAgent(api, cpus=1)
    names: list[tuple[str, str]] = []
    agent.sync()
    for number in range(36):
        match chance.choice(("submit", "submit", "start", "report", "report", "end", "cancel", "note", "label")):
            case "submit":
                name = f"job_{number}"
                who, project = chance.choice((ALICE, BOB)), chance.choice("pq")
                submit(api, name, project, who, team=chance.choice(("vision", "text")))
                names.append((project, name))
            case "start" if not agent.runs:
                agent.turn()
                if agent.runs:
                    agent.start()
            case "report" if agent.runs:
                report(api, agent, number, round(chance.random(), 3))
            case "end" if agent.runs:
                agent.exit(code=chance.randint(0, 1))
            case "cancel" if names:
                project, name = chance.choice(names)
                api.client.post(f"/v1/projects/{project}/jobs/{name}:cancel", headers=ADMIN)
            case "note" if names:
                project, name = chance.choice(names)
                path = f"/trainyard/v1/projects/{project}/jobs/{name}/note"
                api.done("PUT", path, json={"note": chance.choice(("again", "fine"))})
            case "label" if names:
                project, name = chance.choice(names)
                path = f"/v1/projects/{project}/jobs/{name}?updateMask=labels"
                api.done("PATCH", path, json={"labels": {"team": chance.choice(("vision", "text"))}})
        api.clock.advance(1)
        pages.read_again()
        if number % 3:
            continue
        for question, table in zip(QUESTIONS, pages.tables, strict=True):
            new = api.use_cases.run_tables.table(None, JobSearchRequest(**question), ["job", "metrics.loss"])
            shown = table.table
            assert shown.listing.jobs == new.listing.jobs, (number, question)
            assert shown.values == new.values, (number, question)
            assert shown.listing.total == new.listing.total, (number, question)
    assert len({job.state for job in pages.tables[0].table.listing.jobs}) >= 4


JOB = "/projects/p/jobs/job"

Messages = Iterator[dict[str, Any]]


@contextmanager
def messages(url: str, path: str) -> Iterator[Messages]:
    """The messages to an open page, by part, as `LivePart.since` returns them."""
    with httpx.stream("GET", f"{url}/live{path}", headers=VERA, trust_env=False, timeout=30) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-encoding"] == "gzip"
        lines = answer.iter_lines()
        yield (json.loads(next(lines).removeprefix("data: ")) for line in lines if line == "event: parts")


def test_stream_of_a_page_begins_with_its_parts(api: Server) -> None:
    running_agent(api)
    with serving(api.app) as url:
        for path in ("/", "/cluster", JOB, *(f"{JOB}/{tab}" for tab in ("logs", "metrics", "files"))):
            named = set(re.findall(r'id="live-([\w-]+)"', api.client.get(path, headers=VERA).text))
            with messages(url, path) as parts:
                assert set(next(parts)) == named, path
            assert named, path
        eventually(lambda: not api.app.state.dashboard.broadcaster._channels)


def test_job_that_goes_on_sends_its_row_and_nothing_else(api: Server) -> None:
    for name in ("job", "another", "a_third"):
        api.create(name)
    agent = ScriptedAgent(api, cpus=1)
    agent.sync()
    agent.begin()
    with serving(api.app) as url, messages(url, "/") as parts:
        whole = next(parts)["jobs"]
        assert len(whole["rows"]) == whole["frame"].count("data-same") == 3
        agent.log('{"event": "progress", "step": 7, "steps": 9, "loss": 0.5}')
        backend = api.use_cases.backend
        backend.notifier.publish(*map(progress_topic, backend.progress.flush()))
        message = next(parts)
        assert [set(part) for part in message.values()] == [{"rows"}]
        (row,) = message["jobs"]["rows"]
        assert 'data-key="p/job"' in row
        api.create("a_fourth")
        message = next(parts)
        (row,) = message["jobs"]["rows"]
        assert 'data-key="p/a_fourth"' in row
        assert re.findall('data-key="p/([^"]*)" data-same', message["jobs"]["frame"])[:2] == ["a_fourth", "a_third"]
        with messages(url, "/") as after_reconnecting:
            assert len(next(after_reconnecting)["jobs"]["rows"]) == 4
