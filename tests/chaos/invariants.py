"""Invariants of every history. Each check raises AssertionError with what it found."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from beds.history_checks import check_ending, check_history
from chaos.history import Outcome
from chaos.plan import AGENT_KINDS, MAX_WIDTH
from chaos.service.cluster import CLUSTER_FAULTS
from chaos.service.program import line
from chaos.service.replicas import Key, Truth, processes_of, truths
from trainyard_agent.runtimes.supervisor import NOT_ENDED
from trainyard_protocol.answers.jobs import JobDetail, ReplicaView, RunView
from trainyard_protocol.answers.log_views import SERVICE_TASK, LogEntry
from trainyard_protocol.states import FAULTS, FINAL_JOB_STATES, Fault, JobState, Reason, ReplicaState, RunState
from trainyard_protocol.states import Outcome as RunOutcome
from trainyard_protocol.wire.logs import LogLine, digest

_STREAMS = ("stdout", "stderr")
_PATIENCE_S = 60.0
_TRACEBACK = re.compile(r"Traceback.*?(?=^\d{4}-|\Z)", re.M | re.S)
_KNOWN_ERRORS = ("are not removed in time",)
"""A busy engine removes a container late; the agent logs that, and tries again."""


def what_was_accepted_exists_once(outcome: Outcome) -> None:
    for name, answers in outcome.answers.items():
        answer = answers.submitted
        assert answer is not None, f"the submission of {name} was never answered"
        repeated = outcome.faults.get("repeated", 0) or answer.attempts > 1
        assert answer.status == 200 or (answer.status == 409 and repeated), f"{name}: {answer}"
    assert sorted(outcome.jobs) == sorted(outcome.answers), f"there are {outcome.jobs}"


def every_job_has_ended_by_legal_moves(outcome: Outcome) -> None:
    jumps = [operation.values["who"] for operation in outcome.plan.operations if operation.kind == "jump"]
    is_clock_steady = not any(who.startswith("server") for who in jumps)
    for name, detail in outcome.details.items():
        assert detail.state in FINAL_JOB_STATES, f"{name} is {detail.state}"
        try:
            check_history(detail)
            check_ending(detail, is_clock_steady=is_clock_steady)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error or error.__traceback__}; events {_events_of(detail)}") from error


def cancelled_is_cancelled_or_had_truly_ended(outcome: Outcome) -> None:
    lives = _lives(outcome)
    for name, answers in outcome.answers.items():
        accepted = [answer for answer in answers.cancels if answer.status == 200]
        detail = outcome.details[name]
        if detail.state is JobState.CANCELLED:
            assert accepted, f"{name} is CANCELLED, and nobody had asked for it: {detail.job}"
        elif accepted and any(event.after == JobState.CANCELLING for event in detail.events):
            last = detail.runs[-1]
            verdict = last.verdict
            assert verdict is not None
            truth = lives.get(_key(last, verdict.replica))
            if verdict.reason in (Reason.COMPLETED, Reason.PROGRAM_ERROR):
                assert truth is not None, f"{name} is {detail.state}, and {verdict.replica} never lived"
                assert truth.code == (verdict.exit_code or 0), f"{name} is {detail.state}; {truth}"


def verdicts_are_what_happened(outcome: Outcome) -> None:
    lives = _lives(outcome)
    for name, run in _runs(outcome):
        detail, verdict = outcome.details[name], run.verdict
        assert verdict is not None, f"{name}, run {run.number} has no verdict"
        truth = lives.get(_key(run, verdict.replica)) if verdict.replica else None
        what = f"{name}, run {run.number}: {verdict.reason} {verdict.message!r}; the program noted {truth}"
        match verdict.reason:
            case Reason.COMPLETED:
                assert truth is not None, what
                assert truth.code == 0, what
            case Reason.PROGRAM_ERROR:
                assert truth is not None, what
                assert truth.code == verdict.exit_code, what
            case Reason.KILLED_BY_SIGNAL:
                dies = truth is not None and any(note["what"] == "dies" for note in truth.notes)
                harmed = outcome.harmed.get(_key(run, verdict.replica), set())
                assert dies or harmed & {"killed", "deleted"}, what
            case Reason.VANISHED:
                assert outcome.harmed.get(_key(run, verdict.replica), set()) & {"removed", "deleted"}, what
            case Reason.PREEMPTED:
                assert "preempted" in outcome.harmed.get(_key(run, verdict.replica), set()), what
            case Reason.HOST_LOST:
                assert outcome.plan.agents > 1, what
                assert outcome.plan.runtime != "kubernetes", what
            case Reason.HOST_FAILED if outcome.faults.get("disks filled"):
                assert detail.state is not JobState.FAILED or run is not detail.runs[-1], what
                assert "No space left on device" in verdict.message or " is full" in verdict.message, what
            case Reason.UNREACHED:
                assert outcome.plan.spreads, what
                assert {operation.kind for operation in outcome.plan.operations} & AGENT_KINDS, what
            case Reason.HOST_FAILED:
                assert outcome.plan.runtime == "kubernetes", what
                is_killed = bool(outcome.agent_ends) and "The agent ended" in verdict.message
                assert is_killed or any(outcome.faults.get(fault) for fault in CLUSTER_FAULTS), what
            case Reason.GIVEN_BACK:
                assert outcome.plan.runtime == "kubernetes" or outcome.plan.spreads, what
                assert detail.state is not JobState.FAILED or run is not detail.runs[-1], what
            case Reason.STOPPED:
                restarts = [one.number for gang in detail.runs for one in gang.restarts]
                assert detail.state is JobState.CANCELLED or run.number in restarts, what
            case _:
                raise AssertionError(what)
    for detail in outcome.details.values():
        verdict = detail.runs[-1].verdict if detail.runs else None
        message = str(detail.job.get("errorMessage", ""))
        if detail.state is JobState.FAILED:
            assert verdict is not None
            assert message.startswith(verdict.message), f"{message!r} does not say {verdict.message!r}"
            assert detail.exit_code == verdict.exit_code, detail
        if detail.state is JobState.SUCCEEDED:
            assert detail.exit_code == 0, detail
            assert not message, detail


def only_failures_cost_a_retry(outcome: Outcome) -> None:
    """Not what an engine did not start, or took away."""
    for name, detail in outcome.details.items():
        # The last one too, where the job was cancelled before its next run.
        queued = {event.run for event in detail.events if event.kind == "job" and event.after == JobState.QUEUED}
        runs = [run for run in detail.runs if run.number in queued]
        reasons = [run.verdict.reason for run in runs if run.verdict is not None]
        failed = [reason for reason in reasons if FAULTS[reason] is Fault.INFRASTRUCTURE]
        counted = [event.message for event in detail.events if "(retry " in event.message]
        assert len(counted) == len(failed), f"{name}: {reasons} cost {counted}"


def each_replica_lives_once_and_no_two_runs_at_once(outcome: Outcome) -> None:
    seen: dict[Key, Truth] = {}
    for truth in truths(outcome.root, outcome.parts):
        assert truth.key not in seen, f"{truth.task} of run {truth.run} lived twice: {seen[truth.key]}, {truth}"
        seen[truth.key] = truth
        others = [name for name in truth.overlaps if _run_of(outcome, name) != truth.run]
        strangers = [name for name in others if not _restarted(outcome, truth, name)]
        assert not strangers, f"{truth.job}: {truth.name} lived beside {strangers} of another run"


def _run_of(outcome: Outcome, name: str) -> str:
    """The run of a life of this name."""
    run = name.partition(".")[0]
    return outcome.parts.get(run, run)


def _restarted(outcome: Outcome, truth: Truth, name: str) -> bool:
    """Whether one of the two lives is a restart of an evaluator, and the other one is of its gang, and another
    replica."""
    gangs = {run.run_id[:10]: gang.number for gang in outcome.details[truth.job].runs for run in (gang, *gang.restarts)}
    rest = name.partition(".")[2]
    mine = gangs.get(truth.run)
    return mine is not None and gangs.get(_run_of(outcome, name)) == mine and rest.partition(".")[0] != truth.task


def gangs_run_whole_or_not_at_all(outcome: Outcome) -> None:
    lives = _lives(outcome)
    known = {_key(run, replica.task) for _, run in _runs(outcome) for replica in run.replicas}
    strangers = [str(key) for key in lives if key not in known]
    assert not strangers, f"{strangers} lived, and the service knows nothing of them"
    for name, run in _runs(outcome):
        alive = [replica for replica in run.replicas if _key(run, replica.task) in lives]
        refused = [r for r in run.replicas if r.reason in (Reason.START_FAILED, Reason.HOST_FAILED)]
        if outcome.plan.runtime == "kubernetes":
            refused = []  # some pods may have been made before the API server failed
        assert not (alive and refused), f"{name}, run {run.number}: {refused} were refused, and {alive} lived"
        if run.verdict is not None and run.verdict.outcome is RunOutcome.SUCCEEDED:
            early = [r.task for r in run.replicas if r not in alive and not _ended_early(outcome, run, r)]
            assert not early, f"{name}, run {run.number} succeeded without {early}"


def every_line_is_there_once_and_in_order(outcome: Outcome) -> None:
    lives = _lives(outcome)
    for name, log in outcome.logs.items():
        entries = log.entries
        cursors = [entry.cursor for entry in entries]
        assert cursors == list(range(1, len(entries) + 1)), f"{name}: cursors {cursors}"
        by_replica: dict[tuple[int, str], list[LogEntry]] = {}
        for entry in entries:
            by_replica.setdefault((entry.run, entry.task), []).append(entry)
        for (run_number, task), lines in by_replica.items():
            numbers = [entry.number for entry in lines]
            assert numbers == list(range(len(lines))), f"{name}, run {run_number}, {task}: numbers {numbers}"
        runs = {run.number: run for run in _all_runs(outcome.details[name])}
        for (number, task), lines in by_replica.items():
            if task != SERVICE_TASK:
                assert number in runs, f"{name}: lines of run {number}, which never was"
                _check_lines(outcome, name, runs[number], task, lines, lives.get(_key(runs[number], task)))
        for run in runs.values():
            for replica in run.replicas:
                truth = lives.get(_key(run, replica.task))
                if truth is not None and (run.number, replica.task) not in by_replica:
                    _check_lines(outcome, name, run, replica.task, [], truth)
                _check_count(outcome, name, run, replica, by_replica.get((run.number, replica.task), []))


def lines_of_pods_have_the_time_of_their_node_in_utc(outcome: Outcome) -> None:
    """Any zone may be that of a node."""
    if outcome.plan.runtime != "kubernetes":
        return
    now = datetime.now(UTC)
    for name, log in outcome.logs.items():
        for entry in log.entries:
            if entry.task != SERVICE_TASK:
                time_ = datetime.fromisoformat(entry.time)
                assert outcome.began <= time_ <= now, f"{name}: {entry.time} of {entry.text[:200]!r}"


def followers_saw_every_line_once(outcome: Outcome) -> None:
    for name, answers in outcome.answers.items():
        whole = [(entry.cursor, entry.task, entry.text) for entry in outcome.logs[name].entries]
        seen = [(entry.cursor, entry.task, entry.text) for entry in answers.followed.entries]
        assert seen == whole, (
            f"{name}: a reader who was cut {answers.followed.cuts} times saw {_difference(seen, whole)}"
        )


def nothing_is_left(outcome: Outcome) -> None:
    """Agents and servers were asked to end. Watchdogs end by themselves, a little later."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while (left := processes_of(outcome.root)) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert not left, f"processes {[(process.pid, process.cmdline()) for process in left]}"
    assert not outcome.containers, f"{outcome.containers}"
    for path in outcome.root.glob("agent-*/"):
        kept = path / "kept-environments"  # for later runs
        children = [child for child in path.iterdir() if child.is_dir() and child != kept]
        found = [child.name for child in children if any(child.iterdir())]
        assert not found, f"{path} still has {found}"


def nobody_stumbled(outcome: Outcome) -> None:
    """Neither servers nor agents met anything that they had not expected."""
    for path in [*outcome.root.glob("server-*.log"), *outcome.root.glob("agent-*.log")]:
        for error in _TRACEBACK.findall(path.read_text(errors="replace")):
            assert any(known in error for known in _KNOWN_ERRORS), f"{path}:\n{error[:3000]}"


INVARIANTS: tuple[Callable[[Outcome], None], ...] = (
    what_was_accepted_exists_once,
    every_job_has_ended_by_legal_moves,
    cancelled_is_cancelled_or_had_truly_ended,
    verdicts_are_what_happened,
    only_failures_cost_a_retry,
    each_replica_lives_once_and_no_two_runs_at_once,
    gangs_run_whole_or_not_at_all,
    every_line_is_there_once_and_in_order,
    lines_of_pods_have_the_time_of_their_node_in_utc,
    followers_saw_every_line_once,
    nothing_is_left,
    nobody_stumbled,
)


def check(outcome: Outcome, expected: Sequence[Callable[[Outcome], None]] = INVARIANTS) -> None:
    """All of them, and every failure of any."""
    found: list[str] = []
    for invariant in expected:
        try:
            invariant(outcome)
        except AssertionError as error:
            found.append(f"{invariant.__name__}: {error}")
    assert not found, "\n".join(found)


def _check_lines(
    outcome: Outcome, name: str, run: RunView, task: str, lines: list[LogEntry], truth: Truth | None
) -> None:
    """A prefix of what the program says, at least as long as what it had noted as written."""
    where = f"{name}, run {run.number}, {task}"
    assert truth is not None, f"{where} has lines, and never lived: {lines[:3]}"
    replica = next(r for r in run.replicas if r.task == task)
    lossy = _may_lack_its_end(outcome, name, run, replica)
    for stream in _STREAMS:
        own = (entry for entry in lines if not entry.text.startswith(NOT_ENDED))
        texts = [entry.text for entry in own if _stream(outcome, entry) == stream]
        for number, text in enumerate(texts):
            whole = line(truth.name, stream, number, len(text))
            if text == whole:
                continue
            last = number == len(texts) - 1 and truth.code is None
            assert last, f"{where}: line {number} of {stream} is {text!r}, not {whole!r}"
            assert line(truth.name, stream, number, MAX_WIDTH).startswith(text), f"{where}: {text!r} at its end"
        if not lossy:
            assert len(texts) >= truth.written[stream], (
                f"{where}: {len(texts)} lines of {stream}, and {truth.written[stream]} were written ({truth.name})"
            )


def _stream(outcome: Outcome, entry: LogEntry) -> str:
    """The stream of a line. A cluster has one, and the line says which it was."""
    return (*entry.text.split(" "), "", "")[1] if outcome.plan.runtime == "kubernetes" else entry.stream


def _check_count(outcome: Outcome, name: str, run: RunView, replica: ReplicaView, lines: list[LogEntry]) -> None:
    where = f"{name}, run {run.number}, {replica.task}"
    assert replica.log_lines == len(lines), f"{where} counts {replica.log_lines} lines and shows {len(lines)}"
    damaged = _damage(outcome, name, run, replica)
    lossy = _may_lack_its_end(outcome, name, run, replica)
    assert lossy or (replica.log_complete and not damaged), f"{where}: log_complete={replica.log_complete} {damaged}"
    summary = outcome.logs[name].summary
    assert summary is not None
    reported = summary.sha256.get(f"{run.number}/{replica.task}")
    if reported is not None and not lossy:
        own = digest(LogLine(time=e.time, stream=e.stream, text=e.text, partial=e.partial) for e in lines)
        assert reported == own, f"{where}: the digest is {reported}, and that of its lines is {own}"


def _may_lack_its_end(outcome: Outcome, name: str, run: RunView, replica: ReplicaView) -> bool:
    """It lost lines to what was done to it, and the job says so."""
    is_reported = any(re.search("may lack|lacks", message) for message in _damage(outcome, name, run, replica))
    if not is_reported:
        return False
    key = _key(run, replica.task)
    if outcome.plan.runtime == "kubernetes" or outcome.plan.agents > 1:
        return key not in outcome.held or _is_dropped(outcome, key)
    return "removed" in outcome.harmed.get(key, set()) and _is_dropped(outcome, key)


def _is_dropped(outcome: Outcome, key: Key) -> bool:
    """Whether nobody had the output of a killed supervisor to its end: no agent had looked, or it ended as well."""
    killed_at = outcome.held.get(key)
    return killed_at is None or any(ended_at >= killed_at for ended_at in outcome.agent_ends)


def _damage(outcome: Outcome, name: str, run: RunView, replica: ReplicaView) -> list[str]:
    """Messages of the job about damage of the log, since an agent that is back has completed it."""
    messages: list[str] = []
    for event in outcome.details[name].events:
        if (event.run, event.task) == (run.number, replica.task):
            if event.kind == "log-damaged":
                messages.append(event.message)
            elif event.kind == "log-complete":
                messages.clear()
    return messages


def _ended_early(outcome: Outcome, run: RunView, replica: ReplicaView) -> bool:
    """It was ended before it could note that it lives."""
    return replica.reason in (Reason.STOPPED, Reason.KILLED_BY_SIGNAL) or bool(
        outcome.harmed.get(_key(run, replica.task))
    )


def _runs(outcome: Outcome) -> Iterator[tuple[str, RunView]]:
    for name, detail in outcome.details.items():
        for run in _all_runs(detail):
            assert run.state is RunState.ENDED
            assert all(replica.state is ReplicaState.EXITED for replica in run.replicas)
            yield name, run


def _all_runs(detail: JobDetail) -> list[RunView]:
    """All runs, with those of evaluators that started again."""
    return [run for gang in detail.runs for run in (gang, *gang.restarts)]


def _lives(outcome: Outcome) -> dict[Key, Truth]:
    return {truth.key: truth for truth in truths(outcome.root, outcome.parts)}


def _key(run: RunView, task: str) -> Key:
    return run.run_id[:10], task


def _events_of(detail: JobDetail) -> list[str]:
    return [f"{e.number} {e.kind} {e.run} {e.task} {e.before}->{e.after} {e.message}" for e in detail.events]


def _difference(seen: list[tuple[int, str, str]], whole: list[tuple[int, str, str]]) -> str:
    pairs = enumerate(zip(seen, whole, strict=False))
    first = next((n for n, (one, other) in pairs if one != other), min(len(seen), len(whole)))
    there, here = whole[first : first + 3], seen[first : first + 3]
    return f"{len(seen)} lines of {len(whole)}; from {first} on: {here} for {there}"
