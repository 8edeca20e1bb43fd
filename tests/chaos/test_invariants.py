"""The invariants can fail: a good history is damaged in one place, and the invariant that is meant reports it."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from chaos import invariants
from chaos.history import History, Outcome, Place
from chaos.plan import Plan, PlannedJob, Script
from chaos.service.artifacts import keep_on_failure
from chaos.service.replicas import Key
from chaos.service.services import Forge
from trainyard_protocol.states import JobState, Reason

pytestmark = [pytest.mark.long, pytest.mark.e2e]

SCRIPT: Script = {
    "master": [["burst", "stdout", 20, 80], ["tail", "stderr"], ["exit", 0]],
    "worker": [["say", "stdout", 3, 0.0], ["sleep", 60]],
}
CHIEF = "master-replica-0"
Damage = Callable[[Outcome], None]


@pytest.fixture(scope="module")
def good(forge: Forge, job_python: str) -> Iterator[Outcome]:
    plan = Plan(0, "process", 1, 1, (PlannedJob("job_0", 0.0, 1, SCRIPT, False),), (), 0.1)
    with keep_on_failure(plan, "good") as root:
        outcome = History(plan, Place(forge, "", python=job_python), root).play()
        invariants.check(outcome)
        yield outcome


def _copied(good: Outcome, directory: Path) -> Outcome:
    """A copy in the directory, less pipes, and kept environments, whose interpreters are links out of it."""
    shutil.copytree(good.root, directory, ignore=shutil.ignore_patterns("kept-environments", "changes"))
    return replace(copy.deepcopy(good), root=directory)


def _lines(outcome: Outcome) -> list[int]:
    """Places of the chief's lines of stdout in the log."""
    entries = outcome.logs["job_0"].entries
    return [n for n, e in enumerate(entries) if (e.task, e.stream) == (CHIEF, "stdout")]


def _lose_the_last_line(outcome: Outcome) -> None:
    del outcome.logs["job_0"].entries[_lines(outcome)[-1]]
    _renumber(outcome)


def _swap_two_lines(outcome: Outcome) -> None:
    entries = outcome.logs["job_0"].entries
    former, latter = _lines(outcome)[3:5]
    entries[former], entries[latter] = entries[latter], entries[former]
    _renumber(outcome)


def _renumber(outcome: Outcome) -> None:
    """Number the lines as a service would that takes them for right: only their texts differ."""
    counts: dict[tuple[int, str], int] = {}
    entries = outcome.logs["job_0"].entries
    for at, entry in enumerate(entries):
        number = counts.get((entry.run, entry.task), 0)
        counts[entry.run, entry.task] = number + 1
        entries[at] = entry.model_copy(update={"cursor": at + 1, "number": number})
    run = outcome.details["job_0"].runs[0]
    replicas = [r.model_copy(update={"log_lines": counts.get((1, r.task), 0)}) for r in run.replicas]
    _change(outcome, runs=(run.model_copy(update={"replicas": tuple(replicas)}),))


def _shift_a_line_by_a_zone(outcome: Outcome) -> None:
    outcome.plan = replace(outcome.plan, runtime="kubernetes")
    entries, at = outcome.logs["job_0"].entries, _lines(outcome)[3]
    east = datetime.fromisoformat(entries[at].time) + timedelta(hours=5.5)
    entries[at] = entries[at].model_copy(update={"time": east.isoformat()})


def _let_a_reader_miss_a_line(outcome: Outcome) -> None:
    del outcome.answers["job_0"].followed.entries[5]


def _truth(outcome: Outcome) -> Path:
    return next(outcome.root.glob(f"jobs/job_0/truth/*.{CHIEF}.*.jsonl"))


def _live_beside_another_run(outcome: Outcome) -> None:
    with _truth(outcome).open("a") as file:
        file.write(json.dumps({"t": 0.0, "what": "overlap", "other": "another"}) + "\n")


def _live_twice(outcome: Outcome) -> None:
    shutil.copy(_truth(outcome), _truth(outcome).with_name("twice.jsonl"))


def _live_unknown(outcome: Outcome) -> None:
    path = _truth(outcome)
    run, _, _ = path.name.partition(".")
    path.with_name("stranger.jsonl").write_text(path.read_text().replace(run, "0123456789"))


def _change(outcome: Outcome, **update: object) -> None:
    outcome.details["job_0"] = outcome.details["job_0"].model_copy(update=update)


def _blame(reason: Reason, exit_code: int) -> Damage:
    def damage(outcome: Outcome) -> None:
        run = outcome.details["job_0"].runs[0]
        assert run.verdict is not None
        verdict = run.verdict.model_copy(update={"reason": reason, "exit_code": exit_code})
        _change(outcome, runs=(run.model_copy(update={"verdict": verdict}),))

    return damage


def _charge_a_retry_for_nothing(outcome: Outcome) -> None:
    events = outcome.details["job_0"].events
    charged = events[-1].model_copy(update={"message": "A new run starts in 1 s (retry 1 of 12)."})
    _change(outcome, events=(*events, charged))


def _leave_a_run(outcome: Outcome) -> None:
    (outcome.root / "agent-0" / "runs" / "left").mkdir()


def _stumble(outcome: Outcome) -> None:
    with (outcome.root / "server-0.log").open("a") as log:
        log.write("Traceback (most recent call last):\n")


DAMAGES: tuple[tuple[Callable[[Outcome], None], Damage], ...] = (
    (invariants.every_line_is_there_once_and_in_order, _lose_the_last_line),
    (invariants.every_line_is_there_once_and_in_order, _swap_two_lines),
    (invariants.lines_of_pods_have_the_time_of_their_node_in_utc, _shift_a_line_by_a_zone),
    (invariants.followers_saw_every_line_once, _let_a_reader_miss_a_line),
    (invariants.each_replica_lives_once_and_no_two_runs_at_once, _live_beside_another_run),
    (invariants.each_replica_lives_once_and_no_two_runs_at_once, _live_twice),
    (invariants.gangs_run_whole_or_not_at_all, _live_unknown),
    (invariants.verdicts_are_what_happened, _blame(Reason.PROGRAM_ERROR, 3)),
    (invariants.verdicts_are_what_happened, _blame(Reason.KILLED_BY_SIGNAL, 137)),
    (invariants.only_failures_cost_a_retry, _charge_a_retry_for_nothing),
    (invariants.every_job_has_ended_by_legal_moves, lambda it: _change(it, state=JobState.RUNNING)),
    (invariants.cancelled_is_cancelled_or_had_truly_ended, lambda it: _change(it, state=JobState.CANCELLED)),
    (invariants.what_was_accepted_exists_once, lambda it: it.jobs.clear()),
    (invariants.nothing_is_left, _leave_a_run),
    (invariants.nothing_is_left, lambda it: it.containers.append("trainyard-job_0")),
    (invariants.nobody_stumbled, _stumble),
)


def test_each_invariant_reports_its_damage(good: Outcome, tmp_path: Path) -> None:
    missed = []
    for number, (invariant, damage) in enumerate(DAMAGES):
        damaged = _copied(good, tmp_path / str(number))
        damage(damaged)
        if _holds(invariant, damaged):
            missed.append((number, invariant.__name__))
    assert missed == []
    assert {invariant for invariant, _ in DAMAGES} == set(invariants.INVARIANTS)


def _holds(invariant: Callable[[Outcome], None], outcome: Outcome) -> bool:
    try:
        invariant(outcome)
    except AssertionError:
        return False
    return True


LOST = ("log-damaged", f"The log of {CHIEF} may lack its end: its host was lost.")
KILLED = ("log-damaged", f"The log of {CHIEF} may lack its last lines: what stored them was killed or removed.")
BACK = ("log-complete", "Its agent is back.")


def test_log_may_lack_its_end_only_where_the_service_says_so_and_it_was_harmed(good: Outcome) -> None:
    key: Key = (good.details["job_0"].runs[0].run_id[:10], CHIEF)
    two = replace(good.plan, agents=2)
    removed: dict[str, Any] = {"harmed": {key: {"removed"}}}
    held = {**removed, "held": {key: 5.0}}
    rows: tuple[tuple[bool, tuple[tuple[str, str], ...], dict[str, Any]], ...] = (
        (False, (), {"plan": two}),
        (False, (LOST,), {}),  # of the only agent nothing is lost
        (True, (LOST,), {"plan": two}),
        (False, (LOST, BACK), {"plan": two}),
        (True, (KILLED,), removed),  # no agent had looked at its output
        (False, (KILLED,), held),  # an agent had, and lived on
        (True, (KILLED,), {**held, "agent_ends": [6.0]}),
    )
    wrong = []
    for may_lack, notices, changes in rows:
        damaged = replace(copy.deepcopy(good), **changes)
        _lose_the_last_line(damaged)
        events = damaged.details["job_0"].events
        update = {"run": 1, "task": CHIEF}
        more = [events[-1].model_copy(update=update | {"kind": k, "message": m}) for k, m in notices]
        _change(damaged, events=(*events, *more))
        if _holds(invariants.every_line_is_there_once_and_in_order, damaged) != may_lack:
            wrong.append((notices, changes))
    assert wrong == []
