"""Tables of open pages: what each change makes them read, and that they show what a new page shows."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from integration.api.api_support import ADMIN, ALICE, BOB, ScriptedAgent, Server
from trainyard_server.services.views.job_search import JobSearchRequest
from trainyard_server.services.views.live_table import LiveTable
from trainyard_server.services.views.run_table import RunTable
from trainyard_server.storage.events.notifier import JobChanges

FILTERS: tuple[dict[str, Any], ...] = (
    {"text": "another"},
    {"project": "q"},
    {"owner": "bob"},
    {"project": "q", "owner": "bob"},
    {"labels": ("team=vision",)},
    {"labels": ("pinned",)},
    {"until": "2026-01-01"},
    {"filter": "labels.team=vision"},
    {"filter": "params.lr<0"},
    {"filter": "metrics.loss.best>0", "owner": "bob"},
)
"""Questions that find no job of alice's in project p."""

ENTRY = ("columns", "latest run", "problems")
"""The queries of the entry of a job."""

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


def running(api: Server) -> ScriptedAgent:
    agent = ScriptedAgent(api, cpus=1)
    agent.sync()
    agent.begin()
    return agent


def report(api: Server, agent: ScriptedAgent, step: int, loss: float) -> None:
    agent.log(f'{{"event": "progress", "step": {step}, "steps": 100, "loss": {loss}}}')
    backend = api.use_cases.backend
    backend.notifier.publish(*(f"progress:{key}" for key in backend.progress.flush()))


def test_job_that_no_page_finds_is_read_once_for_all_and_nothing_is_searched(api: Server) -> None:
    submit(api, "job")
    pages = Pages(api, FILTERS)
    agent = running(api)
    with pages.queries() as seen:
        assert pages.read_again() == [None] * len(FILTERS)
    assert len(seen) == len(ENTRY) + 2  # and two filters that its entry does not answer
    report(api, agent, 1, 0.5)
    with pages.queries() as seen:
        assert pages.read_again() == [None] * len(FILTERS)
    assert len(seen) == len(ENTRY)  # for the page that asks for metrics


def test_progress_is_read_of_the_jobs_that_are_shown_without_a_search(api: Server) -> None:
    submit(api, "job")
    agent = running(api)
    pages = Pages(api, [{}, {"states": ("QUEUED",)}])
    first = pages.tables[0].table
    report(api, agent, 7, 0.5)
    with pages.queries() as seen:
        shown, other = pages.read_again()
    assert other is None
    assert shown is not None
    assert [job.step for job in shown.listing.jobs] == [7]
    assert shown.listing.counts is first.listing.counts
    assert not any("ORDER BY jobs" in statement or "count(" in statement for statement in seen)


def test_counts_are_read_once_for_all_pages_with_other_states(api: Server) -> None:
    submit(api, "job")
    pages = Pages(api, [{"states": (state,)} for state in ("FAILED", "SUCCEEDED", "CANCELLED")])
    submit(api, "another")
    with pages.queries() as seen:
        tables = pages.read_again()
    assert [sum(table.listing.counts.values()) for table in tables if table is not None] == [2, 2, 2]
    assert sum("GROUP BY jobs.state" in statement for statement in seen) == 1


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
