import io
import signal
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from trainyard_cli.client import Client, LogQuery
from trainyard_cli.output.log.follow import cancel_hint, exit_code, stream
from trainyard_cli.output.log.log_screen import PlainScreen
from trainyard_cli.output.log.next_command import next_command
from trainyard_cli.settings import Server
from trainyard_protocol.answers.jobs import JobDetail, Verdict
from trainyard_protocol.answers.log_views import LogEntry, LogSummary
from trainyard_protocol.errors import PermissionDenied, Unavailable
from trainyard_protocol.states import JobState, Outcome, Reason
from trainyard_protocol.wire.logs import LogLine, digest
from unit.cli.scripted_server import CUT, Answer, ScriptedServer, events, ok, refused

WORKER = "worker-replica-0"


def line(cursor: int, text: str = "", task: str = WORKER) -> tuple[str, LogEntry]:
    return "log", LogEntry(
        cursor=cursor, run=1, task=task, number=cursor - 1, time="2026-11-20T12:00:00Z", stream="stdout",
        severity="INFO", text=text or f"line {cursor}",
    )  # fmt: skip


def job(state: JobState, **changes: Any) -> tuple[str, JobDetail]:
    resource = {"jobId": "j", "trainingInput": {}, "createTime": "2026-11-20T12:00:00Z"}
    if state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
        resource["endTime"] = "2026-11-20T12:01:05Z"
    return "job", JobDetail(**({"job": resource, "job_dir": "/out", "state": state} | changes))


def end(lines: int, state: JobState = JobState.SUCCEEDED, **printed: Any) -> tuple[str, LogSummary]:
    return "end", LogSummary(state=state, lines={f"1/{WORKER}": lines}, **printed)


def of_texts(*texts: str) -> str:
    """The digest that the agent computes of a replica's lines."""
    return digest(LogLine(time="2026-11-20T12:00:00Z", stream="stdout", text=text) for text in texts)


FAILED = job(
    JobState.FAILED,
    exit_code=3,
    verdict=Verdict(
        outcome=Outcome.FAILED,
        reason=Reason.PROGRAM_ERROR,
        message="The replica worker 0 exited with a non-zero status of 3.",
        replica=WORKER,
        exit_code=3,
        last_lines=("Traceback", "ValueError: no"),
    ),
)


class Followed:
    def __init__(self, script: ScriptedServer, *, follow: bool = True, **query: str) -> None:
        out, err = io.StringIO(), io.StringIO()
        self.waits: list[float] = []
        with Client(Server(script.url, "t"), "p", sleep=self.waits.append) as client:
            self.code = stream(client, "j", PlainScreen(out, err), query=LogQuery(**query), follow=follow)
        self.texts = [text.rpartition("  ")[2] for text in out.getvalue().splitlines()]
        self.notes = err.getvalue()


def test_stream_of_a_job_that_succeeds_prints_each_line_and_exits_0(script: ScriptedServer) -> None:
    script.answers = [events(job(JobState.RUNNING), line(1), line(2), job(JobState.SUCCEEDED), end(2))]
    followed = Followed(script)
    assert followed.code == 0
    assert followed.texts == ["line 1", "line 2"]
    assert "Job [j] succeeded after 01:05." in followed.notes
    assert "Job dir: /out" in followed.notes
    assert "WARNING" not in followed.notes


def test_stream_of_a_running_job_that_is_not_followed_prints_what_there_is_and_exits_0(script: ScriptedServer) -> None:
    running = events(job(JobState.RUNNING), line(1), end(1, JobState.RUNNING))
    script.answers = [running]
    followed = Followed(script, follow=False)
    assert followed.code == 0
    assert followed.texts == ["line 1"]
    assert followed.notes == ""
    assert "follow=false" in script.requests[0].path


def test_stream_that_is_cut_resumes_after_the_last_line_it_has(script: ScriptedServer) -> None:
    script.answers = [
        events(job(JobState.RUNNING), line(1), line(2)),
        CUT,
        refused(Unavailable("starting")),
        events(line(2), line(3), job(JobState.SUCCEEDED), end(3)),
    ]
    followed = Followed(script)
    assert followed.texts == ["line 1", "line 2", "line 3"]
    assert [request.headers.get("Last-Event-ID") for request in script.requests] == [None, "2", "2", "2"]
    assert followed.notes.count("Lost the connection to the server") == 1
    assert followed.notes.count("Reconnected to the server.") == 1
    assert followed.waits == [0.25, 0.5, 1.0]


DIGEST = {f"1/{WORKER}": of_texts("line 1", "line 2")}
DONE = job(JobState.SUCCEEDED)
ODD = "ü\0\ufffd"


@pytest.mark.parametrize(
    ("sent", "says"),
    [([line(1), line(2, ODD), DONE, end(2, sha256={f"1/{WORKER}": of_texts("line 1", ODD)})], ""),
     ([line(1), line(3), DONE, end(3)], f"WARNING: the log of {WORKER} (run 1) has 3 lines; 2 arrived."), ([line(1),
     DONE, end(1, kept={f"1/{WORKER}": 1})], "Lines from number 1 on were not stored."), *(([line(1), line(2, text),
     last, end(2, last[1].state, sha256=DIGEST)],
     f"WARNING: the log of {WORKER} (run 1) is damaged: all 2 lines arrived") for text in ("other", "line 2 ",
     "Line 2") for last in (DONE, FAILED))],
)  # fmt: skip
def test_missing_or_changed_lines_are_a_warning(script: ScriptedServer, sent: list[tuple[str, Any]], says: str) -> None:
    script.answers = [events(*sent[:1]), events(*sent)]
    followed = Followed(script)
    assert says in followed.notes
    assert ("WARNING" in followed.notes) is says.startswith("WARNING")
    assert followed.code == (3 if FAILED in sent else 0)


@pytest.mark.parametrize("query", [{"search": "x"}, {"severity": "ERROR"}, {"since": "2026-11-20T12:00:00Z"}])
def test_stream_with_a_filter_asks_for_the_same_again(script: ScriptedServer, query: dict[str, Any]) -> None:
    printed = {f"1/{WORKER}": of_texts("a", "b", "c")}
    script.answers = [events(line(2)), events(line(4), job(JobState.SUCCEEDED), end(9, sha256=printed))]
    followed = Followed(script, **query)
    assert "WARNING" not in followed.notes
    ((name, _),) = query.items()
    assert [f"{name}=" in request.path for request in script.requests] == [True, True]
    assert script.requests[1].headers["Last-Event-ID"] == "2"


def test_stream_of_a_failed_job_names_the_first_failure_and_exits_with_its_code(script: ScriptedServer) -> None:
    script.answers = [events(line(1), FAILED, end(1, JobState.FAILED))]
    followed = Followed(script)
    assert followed.code == 3
    assert followed.notes.startswith("""
Job [j] failed after 01:05.
  worker-replica-0 failed first (PROGRAM_ERROR, exit code 3):
  The replica worker 0 exited with a non-zero status of 3.
  Last lines of worker-replica-0:
    Traceback
    ValueError: no
  Job dir: /out
  Exit code: 3
""")


def test_stream_whose_final_state_never_came_asks_for_it(script: ScriptedServer) -> None:
    final = job(JobState.CANCELLED)[1]
    script.answers = [events(end(0, JobState.CANCELLED)), ok(final.model_dump(mode="json"))]
    followed = Followed(script)
    assert followed.code == 1
    assert "Job [j] was cancelled after 01:05." in followed.notes


def test_stream_that_is_interrupted_prints_how_to_resume_and_exits_130(script: ScriptedServer) -> None:
    class Interrupting(PlainScreen):
        def lines(self, entries: Sequence[LogEntry]) -> None:
            raise KeyboardInterrupt

    script.answers = [events(line(1))]
    err = io.StringIO()
    with Client(Server(script.url, "t"), "p") as client:
        assert stream(client, "j", Interrupting(io.StringIO(), err)) == 130
    assert "jobs stream-logs j" in err.getvalue()
    assert "jobs cancel j" in err.getvalue()
    assert [request.method for request in script.requests] == ["GET"]


def test_exit_code_is_0_for_success_alone() -> None:
    success, failure = (JobState.SUCCEEDED, 0), (JobState.FAILED, 1)
    table = {success: 0, (success[0], None): 0, (failure[0], 137): 137, (failure[0], None): 1, (failure[0], 0): 1}
    table[JobState.CANCELLED, 1] = 1
    assert {one: exit_code(job(one[0], exit_code=one[1])[1]) for one in table} == table


class _Interrupted(PlainScreen):
    """A screen whose reader presses Ctrl-C at these lines, and waits for what follows."""

    def __init__(self, at: set[str]) -> None:
        self.err = io.StringIO()
        super().__init__(io.StringIO(), self.err)
        self._at = at

    def lines(self, entries: Sequence[LogEntry]) -> None:
        super().lines(entries)
        for _ in self._at.intersection(entry.text for entry in entries):
            signal.raise_signal(signal.SIGINT)
            for thread in threading.enumerate():
                if thread.name == "cancel":
                    thread.join(5)


@pytest.mark.parametrize(
    ("answer", "at", "code", "messages"),
    [
        (ok({}), {"line 1"}, 1, ["Cancelling job [j]. A second Ctrl-C stops", "Job [j] was cancelled after 01:05."]),
        (ok({}), {"line 1", "line 2"}, 130, ["Cancelling job [j]."]),
        (refused(PermissionDenied("no")), {"line 1"}, 1, ["Job [j] was not cancelled: no"]),
    ],
)  # fmt: skip
def test_stream_that_cancels_on_interrupt_shows_the_end_of_the_job(
    script: ScriptedServer, answer: Answer, at: set[str], code: int, messages: list[str]
) -> None:
    script.answers = [events(line(1), line(2), job(JobState.CANCELLED), end(2, JobState.CANCELLED)), answer]
    screen = _Interrupted(at)
    with Client(Server(script.url, "t"), "p") as client:
        assert stream(client, "j", screen, cancel_on_interrupt=True) == code
    for message in messages:
        assert message in screen.err.getvalue()
    assert [r.path for r in script.requests if r.method == "POST"] == ["/v1/projects/p/jobs/j:cancel"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_second_interrupt_before_the_server_has_confirmed_says_so() -> None:
    assert "has not confirmed yet" in cancel_hint("j", False)


def resource(name: str, module: str = "trainer.task", image: str = "", **more: Any) -> dict[str, Any]:
    config = {"masterConfig": {"imageUri": image}} if image else {}
    package = "gs://b/trainer-1.0.tar.gz"
    return {"jobId": name, "trainingInput": {"pythonModule": module, "packageUris": [package], **config, **more}}


def hints(script: ScriptedServer, **changes: Any) -> list[str]:
    given = {"job": resource("j"), "job_dir": "", "state": JobState.FAILED} | changes
    with Client(Server(script.url, "t"), "p") as client:
        return next_command(client, JobDetail(**given))


def test_failed_job_is_compared_with_the_last_of_its_program_that_succeeded(script: ScriptedServer) -> None:
    another = resource("z", packageUris=["gs://b/another-1.0.tar.gz"])
    newer = resource("good", packageUris=["gs://b/trainer-1.1.tar.gz"])
    others = [
        resource("x", "other.task"), resource("y", image="team/a:1"), another,
        resource("s", hyperparameters={"maxTrials": 2}), newer, resource("older"),
    ]  # fmt: skip
    script.answers = [ok({"jobs": others}), ok({"jobs": others[:3]}), ok({})]
    assert hints(script) == ["To compare it with the last one that succeeded:  jobs diff j good"]
    assert "filter=state%3ASUCCEEDED&pageSize=20" in script.requests[0].path
    assert hints(script) == ["To run it again:  jobs rerun j"]
    assert hints(script) == ["To run it again:  jobs rerun j"]
