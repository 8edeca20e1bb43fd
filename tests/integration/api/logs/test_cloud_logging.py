"""`entries:list` of Cloud Logging: gcloud's way of following a log, filters, order and pages."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from integration.api.api_support import ADMIN, VERA, Clock, Server, server
from trainyard_protocol.sync import LogLine
from trainyard_server.storage.logs.store import Stream

CHIEF, WORKER = Stream(1, "master-replica-0"), Stream(1, "worker-replica-0")
IN_JOB = 'resource.labels.job_id="job"'


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path, Clock()) as running:
        running.create()
        yield running


def add(api: Server, stream: Stream, seconds: Sequence[float], text: str = "") -> None:
    """Lines of the stream behind those that it has, printed so many seconds after 13:00."""
    logs = api.use_cases.backend.logs
    start = logs.count("p", "job", stream)
    lines = [
        LogLine(
            time=f"2026-11-20T13:00:{second:09.6f}Z", stream="stderr", text=text or f"{stream.task} {number}"
        )
        for number, second in enumerate(seconds, start)
    ]
    logs.append("p", "job", stream, start, lines)


def ask(api: Server, text: str = IN_JOB, headers: dict[str, str] = ADMIN, **given: Any) -> httpx.Response:
    body = {"resourceNames": ["projects/p"], "filter": text, "pageSize": 1000, **given}
    return api.client.post("/v2/entries:list", json=body, headers=headers)


class Follower:
    """A reader that does as gcloud's `stream-logs`: it drops what is not behind its position."""

    def __init__(self, api: Server) -> None:
        self._api = api
        self._time, self._insert_id, self._is_twice = "1970-01-01T01:00:00.000000000Z", "", False
        self.seen: list[str] = []

    def poll(self) -> None:
        after = f'timestamp>="{self._time}"'
        if self._is_twice:
            same = f'timestamp="{self._time}" AND insertId>"{self._insert_id}"'
            after = f'(({same}) OR timestamp>"{self._time}")'
        kinds = '(resource.type="ml_job" OR resource.type="cloudml_job")'
        text = f'{kinds} AND {IN_JOB} AND {after} AND timestamp<"2026-11-20T14:00:00Z"'
        answer = ask(self._api, text, orderBy="timestamp asc").json()
        for entry in answer.get("entries", ()):
            if self._advance(entry["timestamp"], entry["insertId"]):
                self.seen.append(entry["textPayload"])

    def _advance(self, time: str, insert_id: str) -> bool:
        if time < self._time or (time == self._time and insert_id <= self._insert_id):
            return False
        self._is_twice = time == self._time
        self._time, self._insert_id = time, insert_id
        return True


def test_follower_gets_every_line_once_though_replicas_report_late(api: Server) -> None:
    follower = Follower(api)
    follower.poll()
    add(api, CHIEF, [10, 10, 11])
    follower.poll()
    add(api, WORKER, [9, 10, 11])  # printed before what the reader has seen
    follower.poll()
    add(api, WORKER, [11.5] * 2500)
    add(api, CHIEF, [11.2])
    for _ in range(5):
        follower.poll()
    own = [text for text in follower.seen if "-replica-" in text]
    expected = [f"{CHIEF.task} {n}" for n in range(4)] + [f"{WORKER.task} {n}" for n in range(2503)]
    assert sorted(own) == sorted(expected)
    assert own[:6] == [f"{stream.task} {n}" for stream in (CHIEF, WORKER) for n in range(3)]
    assert "Job job is queued." in follower.seen


def test_entries_are_filtered_ordered_and_paged(api: Server) -> None:
    add(api, CHIEF, [1, 2])
    add(api, WORKER, [3, 4], "E1120 10:00:00.1 main.cc:1] no memory")
    add(api, CHIEF, [5], json.dumps({"message": "structured", "severity": "WARNING"}))

    def texts(text: str, **given: Any) -> list[str]:
        answer = ask(api, f"{IN_JOB} AND {text}" if text else IN_JOB, **given).json()
        return [one.get("textPayload") or one["jsonPayload"]["message"] for one in answer.get("entries", ())]

    errors = [one["textPayload"] for one in ask(api, f"{IN_JOB} AND severity>=ERROR").json()["entries"]]
    assert errors == ["E1120 10:00:00.1 main.cc:1] no memory"] * 2
    assert texts('resource.labels.task_name="master-replica-0"')[-1] == "structured"
    assert texts('labels.task_name="service" AND textPayload:"queued"') == ["Job job is queued."]
    assert texts("severity=WARNING") == ["structured"]
    assert texts("severity=(WARNING OR ERROR)") == [*errors, "structured"]
    assert texts('timestamp>="2026-11-20T13:00:02Z" AND timestamp<"2026-11-20T13:00:03Z"') == [
        f"{CHIEF.task} 1"
    ]
    assert texts("NOT resource.labels.task_name:replica AND textPayload:created") == []
    assert texts("", orderBy="timestamp desc", pageSize=2) == ["structured", errors[0]]
    assert ask(api, 'resource.labels.job_id="none"').json() == {}

    for order in ("timestamp asc", "timestamp desc"):
        whole = [one["insertId"] for one in ask(api, orderBy=order).json()["entries"]]
        paged, token = [], ""
        while True:
            page = ask(api, orderBy=order, pageSize=3, pageToken=token).json()
            paged += [one["insertId"] for one in page.get("entries", ())]
            token = page.get("nextPageToken", "")
            if not token:
                break
        assert paged == whole
        assert whole == sorted(whole, reverse=order.endswith("desc"))


@pytest.mark.parametrize("order", ["timestamp asc", "timestamp desc"])
def test_page_of_long_lines_has_few_of_them(api: Server, order: str) -> None:
    """A page is in memory as a whole, and a line may have a megabyte."""
    for _ in range(12):
        add(api, CHIEF, [1], "x" * 2**20)
    found: list[str] = []
    pages: list[list[str]] = []
    token = ""
    while token or not pages:
        page = ask(api, f"{IN_JOB} AND textPayload:x", orderBy=order, pageToken=token).json()
        pages.append([one["insertId"] for one in page.get("entries", ())])
        found += pages[-1]
        token = page.get("nextPageToken", "")
    assert max(map(len, pages)) == 4
    assert (len(set(found)), found) == (12, sorted(found, reverse=order.endswith("desc")))


def test_lines_that_no_json_answer_can_have_are_texts(api: Server) -> None:
    lines = [
        '{"message": "loss", "loss": NaN}',
        '{"message": "loss", "loss": 1e999}',
        r'{"message": "\ud800"}',
    ]
    for line in lines:
        add(api, CHIEF, [1], line)
    entries = ask(api, f'{IN_JOB} AND labels.task_name="{CHIEF.task}"').json()["entries"]
    assert [entry["textPayload"] for entry in entries] == lines


def test_what_cannot_be_asked_is_said(api: Server) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "must name a job": {"text": "severity>=ERROR"},
        "must be one project": {"resourceNames": ["organizations/1"]},
        "'httpRequest.status' cannot be filtered by": {"text": f"{IN_JOB} AND httpRequest.status=1"},
        "is no severity": {"text": f"{IN_JOB} AND severity=BAD"},
        "separated by OR": {"text": f"{IN_JOB} AND severity=(ERROR WARNING)"},
        "is not a time": {"text": f"{IN_JOB} AND timestamp>yesterday"},
        "order_by": {"orderBy": "severity"},
        "page_token": {"pageToken": "AAAA"},
        "one of : = != < <= > >= is expected": {"text": f'{IN_JOB} AND textPayload=~"(a+)+"'},
    }
    for says, given in wrong.items():
        answer = ask(api, **given)
        assert (answer.status_code, says in answer.text) == (400, True), answer.text
    assert ask(api, headers=VERA).status_code == 200
    assert ask(api, headers=VERA, resourceNames=["projects/p", "projects/q"]).status_code == 400
