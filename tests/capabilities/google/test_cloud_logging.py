"""`entries:list` of Cloud Logging: gcloud's way of following a log, filters, order and pages."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from integration.api.api_support import ADMIN, VERA, ScriptedAgent, Server
from trainyard_protocol.wire.logs import LogLine
from trainyard_server.capabilities.google.logging import entries_list
from trainyard_server.storage.logs.store import Stream

CHIEF, WORKER = Stream(1, "master-replica-0"), Stream(1, "worker-replica-0")
IN_JOB = 'resource.labels.job_id="job"'


@pytest.fixture(autouse=True)
def job(api: Server) -> None:
    """A job that waits."""
    api.create()


def add(api: Server, stream: Stream, seconds: Sequence[float], text: str = "", job_id: str = "job") -> None:
    """Lines of the stream behind those that it has, printed so many seconds after 13:00."""
    logs = api.use_cases.backend.logs
    start = logs.count("p", job_id, stream)
    lines = [
        LogLine(time=f"2026-11-20T13:00:{second:09.6f}Z", stream="stderr", text=text or f"{stream.task} {number}")
        for number, second in enumerate(seconds, start)
    ]
    logs.append("p", job_id, stream, start, lines)


def ask(api: Server, text: str = IN_JOB, headers: dict[str, str] = ADMIN, **given: Any) -> httpx.Response:
    body = {"resourceNames": ["projects/p"], "filter": text, "pageSize": 1000, **given}
    return api.client.post("/v2/entries:list", json=body, headers=headers)


def pages(api: Server, text: str = IN_JOB, **given: Any) -> Iterator[httpx.Response]:
    """Every page of the entries."""
    token = ""
    while True:
        page = ask(api, text, pageToken=token, **given)
        yield page
        token = page.json().get("nextPageToken", "")
        if not token:
            return


def insert_ids(answer: httpx.Response) -> list[str]:
    return [one["insertId"] for one in answer.json().get("entries", ())]


class Follower:
    """A reader that does as gcloud's `stream-logs`: it drops what is not behind its position."""

    def __init__(self, api: Server, job_id: str = "job") -> None:
        self._api, self._job_id = api, job_id
        self._time, self._insert_id, self._is_twice = "1970-01-01T01:00:00.000000000Z", "", False
        self.seen: list[str] = []

    def poll(self) -> None:
        after = f'timestamp>="{self._time}"'
        if self._is_twice:
            same = f'timestamp="{self._time}" AND insertId>"{self._insert_id}"'
            after = f'(({same}) OR timestamp>"{self._time}")'
        kinds = '(resource.type="ml_job" OR resource.type="cloudml_job")'
        text = f'{kinds} AND resource.labels.job_id="{self._job_id}" AND {after} AND timestamp<"2026-11-20T14:00:00Z"'
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


def test_page_of_long_lines_has_few_of_them(api: Server) -> None:
    """A page is in memory as a whole, and a line may have a megabyte."""
    for _ in range(12):
        add(api, CHIEF, [1], "x" * 2**20)
    for order in ("timestamp asc", "timestamp desc"):
        paged = [insert_ids(page) for page in pages(api, f"{IN_JOB} AND textPayload:x", orderBy=order)]
        ids = [one for page in paged for one in page]
        assert max(map(len, paged)) == 4
        assert (len(set(ids)), ids) == (12, sorted(ids, reverse=order.endswith("desc")))


def test_lines_that_no_json_answer_can_have_are_texts(api: Server) -> None:
    lines = ['{"message": "loss", "loss": NaN}', '{"message": "loss", "loss": 1e999}', r'{"message": "\ud800"}']
    for line in lines:
        add(api, CHIEF, [1], line)
    entries = ask(api, f'{IN_JOB} AND labels.task_name="{CHIEF.task}"').json()["entries"]
    assert [entry["textPayload"] for entry in entries] == lines


def test_what_cannot_be_asked_is_said(api: Server) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "must be one project": {"resourceNames": ["organizations/1"]},
        "'thud' cannot be filtered by": {"text": f"{IN_JOB} AND thud=1"},
        "'resource.label.job_id' cannot be filtered by": {"text": 'resource.label.job_id="job"'},
        "'sample' is not a function; allowed: log_id, SEARCH": {"text": "sample(insertId, 0.5)"},
        "'cast' is not a function": {"text": "timestamp>cast(x, TIMESTAMP)"},
        "log_id has one value": {"text": "log_id()"},
        "SEARCH has a text": {"text": 'SEARCH(a, b, "c")'},
        "commas between": {"text": 'SEARCH(textPayload "loss")'},
        "has no word": {"text": 'SEARCH("--")'},
        "phrases in backticks": {"text": 'SEARCH("`a b`")'},
        "looks into texts": {"text": 'SEARCH(receiveTimestamp, "2026")'},
        "is not a severity": {"text": f"{IN_JOB} AND severity=BAD"},
        "separated by OR": {"text": f"{IN_JOB} AND severity=(ERROR WARNING)"},
        "is not a time": {"text": f"{IN_JOB} AND timestamp>yesterday"},
        "order_by": {"orderBy": "severity"},
        "page_token": {"pageToken": "AAAA"},
        "bad repetition operator": {"text": f'{IN_JOB} AND textPayload=~"a**"'},
    }
    for says, given in wrong.items():
        answer = ask(api, **given)
        assert (answer.status_code, says in answer.text) == (400, True), answer.text
    assert ask(api, headers=VERA).status_code == 200
    assert ask(api, headers=VERA, resourceNames=["projects/p", "projects/q"]).status_code == 400


def run(api: Server, *names: str) -> None:
    """An agent takes these jobs, whose logs go on from now."""
    agent = ScriptedAgent(api, cpus=9)
    agent.sync()
    api.tick()
    assert {order.job_id for order in agent.sync().runs} >= set(names)


def job_ids(answer: httpx.Response) -> list[str]:
    return [entry["resource"]["labels"]["job_id"] for entry in answer.json().get("entries", ())]


def test_filters_without_a_job_find_the_lines_of_all_jobs_of_the_project(api: Server) -> None:
    api.create("other")
    api.create("hidden", project="q")
    run(api, "job", "other")
    add(api, CHIEF, [1, 3, 5], "E1120 10:00:00.1 main.cc:1] no memory")
    add(api, CHIEF, [2, 4], "calm", job_id="other")
    add(api, CHIEF, [6], json.dumps({"message": "structured", "fields": {"lr": 0.5, "a.b": 1}}), job_id="other")
    api.clock.now = datetime(2026, 11, 20, 14, tzinfo=UTC)
    replica = 'resource.labels.task_name="master-replica-0"'
    rows: dict[str, list[str]] = {
        replica: ["job", "other", "job", "other", "job", "other"],
        "severity>=ERROR": ["job"] * 3,
        "severity=(WARNING OR CRITICAL)": [],
        'resource.labels.job_id="none"': [],
        'resource.labels.job_id="job" AND labels.task_name="service" AND textPayload:"is queued"': ["job"],
        f'resource.type="ml_job" AND {replica} AND textPayload:calm': ["other"] * 2,
        'textPayload:* AND labels."ml.googleapis.com/task_name":master': ["job", "other", "job", "other", "job"],
        "jsonPayload:*": ["other"],
        "jsonPayload.fields.lr=0.5": ["other"],
        'textPayload=~"^ca.*m$"': ["other"] * 2,
        f'{replica} AND textPayload!~"(main|c[abc]lm)"': ["other"],
        '"no memory"': ["job"] * 3,
        "memory AND NOT calm": ["job"] * 3,
        'timestamp>="2026-11-20T13:00:04Z"': ["other", "job", "other"],
        'resource.labels.job_id=("job" OR "other") AND severity>=ERROR': ["job"] * 3,
        "resource.labels.job_id:oth AND labels.task_name:master": ["other"] * 3,
        "labels.trial_id:*": [],
        # OR binds tighter than AND, said or not.
        "resource.labels.job_id=job OR resource.labels.job_id=other AND textPayload:calm": ["other"] * 2,
        f"{replica} severity>=ERROR OR textPayload:calm": ["job", "other", "job", "other", "job"],
        'resource.labels.job_id!="job" AND "calm"': ["other"] * 2,
        # Functions and comments.
        'log_id("master-replica-0") AND severity<ERROR': ["other"] * 3,
        'SEARCH("memory NO")': ["job"] * 3,
        'SEARCH (textPayload, "calm")': ["other"] * 2,
        'NOT SEARCH("cal") AND -"no memory" AND log_id("master-replica-0")': ["other"] * 3,
        'SEARCH(jsonPayload.message,"structured")': ["other"],
        "-- lines of jobs\nseverity>=ERROR -- only errors": ["job"] * 3,
        'no "memory"': ["job"] * 3,
        # Severities as numbers.
        "severity>=400": ["job"] * 3,
        f"{replica} severity<500 severity!=600": ["other"] * 3,
        # Fields and labels that entries have or not.
        'labels."ml.googleapis.com/job_id"="other" severity>=DEFAULT textPayload:calm': ["other"] * 2,
        'receiveTimestamp>="2026-11-20T13:00:04Z"': ["other", "job", "other"],
        f"{replica} NOT protoPayload:* labels:master resource.labels:other": ["other"] * 3,
        "jsonPayload.loss>0.1 OR jsonPayload.loss!=1 OR labels.zone!=a OR protoPayload.x!~a": [],
        f"NOT jsonPayload.fields.lr>0.1 {replica} -httpRequest.status>=400": ["job", "other", "job", "other", "job"],
        'jsonPayload.fields."a.b"=1 AND NOT jsonPayload.fields.lr.x:*': ["other"],
        "jsonPayload.fields.lr<10 AND jsonPayload.fields.lr>=0.50": ["other"],
        f'{replica} textPayload!="calm"': ["job"] * 3 + ["other"],
        # Regular expressions, with one backslash or two.
        r'textPayload=~"^E\d{4} ([0-9]+:)+\d+\.\d+ .*\]"': ["job"] * 3,
        r'textPayload=~"^E\\d{4} ([0-9]+:)+\\d+\\.\\d+ .*\\]"': ["job"] * 3,
    }
    found = {text: job_ids(ask(api, text)) for text in rows}
    assert {text: ids for text, ids in found.items() if ids != rows[text]} == {}
    assert job_ids(ask(api, replica, orderBy="timestamp desc")) == rows[replica][::-1]
    everything = job_ids(ask(api, ""))
    assert (set(everything), everything[-6:]) == ({"job", "other"}, rows[replica])
    for text in ("", IN_JOB):
        for order in ("timestamp asc", "timestamp desc"):
            whole = insert_ids(ask(api, text, orderBy=order))
            paged = [one for page in pages(api, text, orderBy=order, pageSize=2) for one in insert_ids(page)]
            assert (paged, len(set(paged))) == (whole, len(whole))
    newest = ask(api, "", orderBy="timestamp desc", pageSize=2).json()["entries"]
    assert [one["timestamp"][17:19] for one in newest] == ["06", "05"]
    assert newest[0]["jsonPayload"]["message"] == "structured"


def test_page_over_more_jobs_than_a_request_opens_is_followed_by_the_others(
    api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries_list, "_MOST_JOBS", 2)
    for number in range(5):
        api.clock.advance(7200)
        api.create(f"one_{number}")
        api.cancel(f"one_{number}")
    api.clock.advance(7200)
    expected = [f"one_{number}" for number in range(5)]
    for order, wanted in (("timestamp asc", expected), ("timestamp desc", expected[::-1])):
        text = "textPayload:queued AND NOT resource.labels.job_id=job"
        paged = [job_ids(page) for page in pages(api, text, orderBy=order)]
        assert ([one for page in paged for one in page], len(paged) > 1) == (wanted, True), order
    for number in range(3):
        api.create(f"beside_{number}")
    run(api, *(f"beside_{number}" for number in range(3)))
    refused = ask(api, "", orderBy="timestamp desc")
    assert (refused.status_code, "more than 2 jobs that ran at the same time" in refused.text) == (400, True)


def test_log_of_a_study_has_the_lines_of_its_trials_with_their_numbers(api: Server) -> None:
    params = [{"parameterName": "x", "type": "INTEGER", "minValue": 1, "maxValue": 9}]
    api.create("study", hyperparameters={"params": params, "maxTrials": 2, "maxParallelTrials": 2})
    api.tick()
    run(api)
    for trial in (1, 2):
        add(api, CHIEF, [trial, trial + 10], f"of trial {trial}", job_id=f"study.{trial}")
    follower = Follower(api, "study")
    follower.poll()
    assert "of trial 1" not in follower.seen  # a line of another machine, printed before it, may still come
    api.clock.now = datetime(2026, 11, 20, 13, 0, 6, tzinfo=UTC)
    for _ in range(2):
        follower.poll()
        api.clock.now = datetime(2026, 11, 20, 13, 1, tzinfo=UTC)
    follower.poll()
    own = [text for text in follower.seen if text.startswith("of trial")]
    assert own == ["of trial 1", "of trial 2"] * 2
    assert any(text.startswith("Trial 1 of study") or "queued" in text for text in follower.seen)
    (entry, _) = ask(api, 'resource.labels.job_id="study" AND labels.trial_id="2" AND textPayload:"of trial"').json()[
        "entries"
    ]
    assert (entry["resource"]["labels"]["job_id"], entry["labels"]["trial_id"]) == ("study", "2")
    alone = ask(api, 'resource.labels.job_id="study.1" AND textPayload:"of trial"').json()["entries"]
    assert [one["labels"]["ml.googleapis.com/trial_id"] for one in alone] == ["1", "1"]
