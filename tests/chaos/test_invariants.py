"""The invariants can fail: a good history is damaged in one place, and the one that is meant finds it."""

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from chaos import invariants
from chaos.history import History, Outcome, Place
from chaos.plan import Plan, PlannedJob, Script
from chaos.service.artifacts import keep_on_failure
from chaos.service.people import Answer
from chaos.service.replicas import truths
from chaos.service.services import Forge
from trainyard_protocol.states import JobState, Reason
from trainyard_protocol.views.views import SERVICE_TASK, JobDetail

pytestmark = [pytest.mark.long, pytest.mark.e2e]

SCRIPT: Script = {
    "master": [["burst", "stdout", 20, 80], ["tail", "stderr"], ["exit", 0]],
    "worker": [["say", "stdout", 3, 0.0], ["sleep", 60]],
}
Damage = Callable[[Outcome], None]


@pytest.fixture(scope="module")
def good(forge: Forge, job_python: str) -> Iterator[Outcome]:
    plan = Plan(0, "process", 1, 1, (PlannedJob("job_0", 0.0, 1, SCRIPT, False),), (), 0.1)
    with keep_on_failure(plan, "good") as root:
        outcome = History(plan, Place(forge, "", python=job_python), root).play()
        invariants.check(outcome)
        yield outcome


def _lines(outcome: Outcome) -> list[int]:
    """Places of the chief's lines of stdout in the log."""
    entries = outcome.logs["job_0"].entries
    return [n for n, e in enumerate(entries) if (e.task, e.stream) == ("master-replica-0", "stdout")]


def _lose_the_last_line(outcome: Outcome) -> None:
    del outcome.logs["job_0"].entries[_lines(outcome)[-1]]
    _renumber(outcome)


def _repeat_a_line(outcome: Outcome) -> None:
    entries, at = outcome.logs["job_0"].entries, _lines(outcome)[3]
    entries.insert(at, entries[at])
    _renumber(outcome)


def _swap_two_lines(outcome: Outcome) -> None:
    entries = outcome.logs["job_0"].entries
    one, other = _lines(outcome)[3:5]
    entries[one], entries[other] = entries[other], entries[one]
    _renumber(outcome)


def _renumber(outcome: Outcome) -> None:
    """Number them as a service would that accepts them: only their texts tell."""
    counts: dict[tuple[int, str], int] = {}
    entries = outcome.logs["job_0"].entries
    for at, entry in enumerate(entries):
        number = counts.get((entry.run, entry.task), 0)
        counts[entry.run, entry.task] = number + 1
        entries[at] = entry.model_copy(update={"cursor": at + 1, "number": number})
    run = outcome.details["job_0"].runs[0]
    replicas = [r.model_copy(update={"log_lines": counts.get((1, r.task), 0)}) for r in run.replicas]
    _change(outcome, runs=(run.model_copy(update={"replicas": tuple(replicas)}),))


def _lose_a_line_of_the_service(outcome: Outcome) -> None:
    entries = outcome.logs["job_0"].entries
    del entries[next(n for n, entry in enumerate(entries) if entry.task == SERVICE_TASK)]


def _shift_a_line_by_a_zone(outcome: Outcome) -> None:
    outcome.plan = replace(outcome.plan, runtime="kubernetes")
    entries, at = outcome.logs["job_0"].entries, _lines(outcome)[3]
    east = datetime.fromisoformat(entries[at].time) + timedelta(hours=5.5)
    entries[at] = entries[at].model_copy(update={"time": east.isoformat()})


def _let_a_reader_miss_a_line(outcome: Outcome) -> None:
    del outcome.answers["job_0"].followed.entries[5]


def _note(outcome: Outcome, **note: object) -> None:
    path = next(outcome.root.glob("jobs/job_0/truth/*.master-replica-0.*.jsonl"))
    with path.open("a") as file:
        file.write(json.dumps({"t": 0.0, **note}) + "\n")


def _live_beside_another_run(outcome: Outcome) -> None:
    _note(outcome, what="overlap", other="another")


def _live_twice(outcome: Outcome) -> None:
    path = next(outcome.root.glob("jobs/job_0/truth/*.master-replica-0.*.jsonl"))
    path.with_name("twice.jsonl").write_text(path.read_text())


def _live_unknown(outcome: Outcome) -> None:
    path = next(outcome.root.glob("jobs/job_0/truth/*.master-replica-0.*.jsonl"))
    run = next(truths(outcome.root)).run
    path.with_name("stranger.jsonl").write_text(path.read_text().replace(run, "0123456789"))


def _change(outcome: Outcome, **update: object) -> None:
    outcome.details["job_0"] = outcome.details["job_0"].model_copy(update=update)


def _verdict(outcome: Outcome, **update: object) -> None:
    detail: JobDetail = outcome.details["job_0"]
    run = detail.runs[0]
    assert run.verdict is not None
    _change(outcome, runs=(run.model_copy(update={"verdict": run.verdict.model_copy(update=update)}),))


def _say_a_program_failed(outcome: Outcome) -> None:
    _verdict(outcome, reason=Reason.PROGRAM_ERROR, exit_code=3)


def _say_a_signal_killed_it(outcome: Outcome) -> None:
    _verdict(outcome, reason=Reason.KILLED_BY_SIGNAL, exit_code=137)


def _charge_a_retry_for_nothing(outcome: Outcome) -> None:
    events = outcome.details["job_0"].events
    charged = events[-1].model_copy(update={"message": "A new run starts in 1 s (retry 1 of 12)."})
    _change(outcome, events=(*events, charged))


def _forget_an_event(outcome: Outcome) -> None:
    _change(outcome, events=outcome.details["job_0"].events[:-1])


def _leave_it_running(outcome: Outcome) -> None:
    _change(outcome, state=JobState.RUNNING)


def _cancel_unasked(outcome: Outcome) -> None:
    _change(outcome, state=JobState.CANCELLED)


def _lose_a_job(outcome: Outcome) -> None:
    outcome.jobs.clear()


def _refuse_a_job(outcome: Outcome) -> None:
    outcome.answers["job_0"].submitted = Answer(409, {}, 0.0)


def _leave_a_container(outcome: Outcome) -> None:
    outcome.containers.append("trainyard-job_0")


def _leave_a_run(outcome: Outcome) -> None:
    (outcome.root / "agent-0" / "runs" / "left").mkdir()


def _stumble(outcome: Outcome) -> None:
    with (outcome.root / "server-0.log").open("a") as log:
        log.write("Traceback (most recent call last):\n")


DAMAGES: list[tuple[Damage, Callable[[Outcome], None]]] = [
    (_lose_the_last_line, invariants.every_line_is_there_once_and_in_order),
    (_repeat_a_line, invariants.every_line_is_there_once_and_in_order),
    (_swap_two_lines, invariants.every_line_is_there_once_and_in_order),
    (_lose_a_line_of_the_service, invariants.every_line_is_there_once_and_in_order),
    (_shift_a_line_by_a_zone, invariants.lines_of_pods_have_the_time_of_their_node_in_utc),
    (_let_a_reader_miss_a_line, invariants.followers_saw_every_line_once),
    (_live_beside_another_run, invariants.each_replica_lives_once_and_no_two_runs_at_once),
    (_live_twice, invariants.each_replica_lives_once_and_no_two_runs_at_once),
    (_live_unknown, invariants.gangs_run_whole_or_not_at_all),
    (_say_a_program_failed, invariants.verdicts_are_what_happened),
    (_say_a_signal_killed_it, invariants.verdicts_are_what_happened),
    (_charge_a_retry_for_nothing, invariants.only_failures_cost_a_retry),
    (_forget_an_event, invariants.every_job_has_ended_by_legal_moves),
    (_leave_it_running, invariants.every_job_has_ended_by_legal_moves),
    (_cancel_unasked, invariants.cancelled_is_cancelled_or_had_truly_ended),
    (_lose_a_job, invariants.what_was_accepted_exists_once),
    (_refuse_a_job, invariants.what_was_accepted_exists_once),
    (_leave_a_container, invariants.nothing_is_left),
    (_leave_a_run, invariants.nothing_is_left),
    (_stumble, invariants.nobody_stumbled),
]


def _files(root: Path) -> list[Path]:
    """Files without kept environments, whose interpreters are links out of the directory."""
    return [path for path in root.rglob("*") if path.is_file() and "kept-environments" not in path.parts]


@pytest.mark.parametrize(("damage", "finder"), DAMAGES, ids=[damage.__name__[1:] for damage, _ in DAMAGES])
def test_damage_is_found_by_the_invariant_that_is_meant(
    good: Outcome, damage: Damage, finder: Callable[[Outcome], None]
) -> None:
    damaged = copy.deepcopy(good)
    before = {path: path.read_bytes() for path in _files(good.root)}
    try:
        damage(damaged)
        with pytest.raises(AssertionError):
            finder(damaged)
    finally:
        for path in [path for path in _files(good.root) if path not in before]:
            path.unlink()
        for path, content in before.items():
            path.write_bytes(content)
        for left in (good.root / "agent-0" / "runs").iterdir():
            left.rmdir()
    finder(good)


def test_log_may_lack_its_end_where_the_service_says_that_its_host_was_lost(good: Outcome) -> None:
    lost = "The log of master-replica-0 may lack its end: its host was lost."
    killed = "The log of master-replica-0 may lack its last lines: what stored them was killed or removed."
    damaged = copy.deepcopy(good)
    _lose_the_last_line(damaged)
    check, events = invariants.every_line_is_there_once_and_in_order, damaged.details["job_0"].events

    def say(*notices: tuple[str, str]) -> None:
        update = {"run": 1, "task": "master-replica-0"}
        more = [events[-1].model_copy(update=update | {"kind": k, "message": m}) for k, m in notices]
        _change(damaged, events=(*events, *more))

    with pytest.raises(AssertionError, match="lines of stdout, and"):
        check(damaged)
    say(("log-damaged", lost))
    with pytest.raises(AssertionError, match="lines of stdout, and"):
        check(damaged)  # of the only agent nothing is lost
    damaged.plan = dataclasses.replace(damaged.plan, agents=2)
    check(damaged)
    say(("log-damaged", lost), ("log-complete", "Its agent is back."))
    with pytest.raises(AssertionError, match="lines of stdout, and"):
        check(damaged)

    damaged.plan = good.plan
    key = (damaged.details["job_0"].runs[0].run_id[:10], "master-replica-0")
    damaged.harmed[key] = {"removed"}
    say(("log-damaged", killed))
    check(damaged)  # no agent had looked at its output
    damaged.held[key] = 5.0
    with pytest.raises(AssertionError, match="lines of stdout, and"):
        check(damaged)  # an agent had, and lived on
    damaged.agent_ends.append(6.0)
    check(damaged)
