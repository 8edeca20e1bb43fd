"""The contract of every runtime, `runtimes/base.py`, line by line."""

import signal
import threading
from dataclasses import replace

import pytest

from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import (
    BUSY,
    FINE,
    FOREVER,
    MANY,
    MISSING,
    STUBBORN,
    Driver,
    KubernetesLab,
    Program,
    order,
)
from trainyard_agent.engines.fake import Print
from trainyard_agent.monitoring.metric_lines import measurements_in
from trainyard_agent.runtimes.base import LogSlice, StartFailed
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.sync import TrialMeasurement

CHIEF, WORKER, EVALUATOR = "master-replica-0", "worker-replica-0", "evaluator-replica-0"
RUN, OTHER = unique_run("1"), unique_run("2")


def test_place_gives_every_task_an_address_of_its_own_once_and_runs_nothing(driver: Driver) -> None:
    handle = driver.runtime.place(order(RUN, CHIEF, WORKER))

    assert list(handle.addresses) == [CHIEF, WORKER]
    assert len(set(handle.addresses.values())) == 2
    assert not handle.launched
    assert handle.grace_s == 5.0
    assert [r.state for r in driver.runtime.observe(RUN)] == [ReplicaState.PENDING] * 2
    assert driver.runtime.place(order(RUN, CHIEF, WORKER, grace_s=9.0)) == handle
    second = driver.runtime.place(order(OTHER, CHIEF, WORKER))
    assert len({*handle.addresses.values(), *second.addresses.values()}) == 4


def test_start_with_one_missing_program_starts_nothing_or_reports_it(driver: Driver) -> None:
    driver.place(RUN, CHIEF, WORKER)
    launches = [driver.lab.launch(CHIEF, FOREVER), driver.lab.launch(WORKER, MISSING)]

    if not driver.runtime.traits.starts_whole:
        driver.runtime.start(RUN, launches)
        driver.until(lambda: driver.reports(RUN)[WORKER].exit)
        missing = driver.reports(RUN)[WORKER]
        assert missing.exit is not None
        assert (missing.exit.code, missing.exit.reason) == (None, Reason.START_FAILED)
        assert missing.started_at is None
        assert driver.reports(RUN)[CHIEF].exit is None
        return

    with pytest.raises(StartFailed) as failure:
        driver.runtime.start(RUN, launches)

    assert failure.value.task == WORKER
    assert driver.runtime.observe(RUN) == ()
    assert driver.runtime.recover() == []
    assert driver.lab.remaining(RUN) == []


def test_start_runs_every_replica_once(driver: Driver) -> None:
    driver.start_and_wait(RUN, {CHIEF: FOREVER, WORKER: FOREVER})
    before = driver.reports(RUN)
    assert [report.state for report in before.values()] == [ReplicaState.RUNNING] * 2
    assert all(report.started_at is not None and report.address for report in before.values())

    assert driver.runtime.start(RUN, [driver.lab.launch(task, FINE) for task in (CHIEF, WORKER)]).launched
    assert driver.reports(RUN) == before
    found = driver.runtime.read_log(RUN, CHIEF, 0, 10, 1 << 20)
    assert ([line.text for line in found.lines], found.complete) == (["up"], False)
    assert driver.runtime.read_log(RUN, CHIEF, 1, 10, 1 << 20) == LogSlice((), complete=False)


def test_start_of_a_run_that_was_not_placed_fails(driver: Driver) -> None:
    with pytest.raises(StartFailed):
        driver.runtime.start(RUN, [driver.lab.launch(CHIEF, FOREVER)])


def test_exit_by_itself_reports_code_and_reason(driver: Driver) -> None:
    programs = {CHIEF: Program(code=3), WORKER: FINE, EVALUATOR: Program(dies_of=signal.SIGKILL)}
    driver.start(RUN, programs)

    reports = driver.wait_for_exits(RUN)

    ends = {task: report.exit for task, report in reports.items() if report.exit is not None}
    assert {task: (end.code, end.reason, end.after_stop) for task, end in ends.items()} == {
        CHIEF: (3, Reason.PROGRAM_ERROR, False),
        WORKER: (0, Reason.COMPLETED, False),
        EVALUATOR: (137, Reason.KILLED_BY_SIGNAL, False),
    }
    assert "9 (SIGKILL)" in ends[EVALUATOR].message
    for task, report in reports.items():
        assert report.state is ReplicaState.EXITED
        assert report.started_at is not None
        assert ends[task].finished_at >= report.started_at
    driver.wait_for_log(RUN, CHIEF)
    driver.runtime.stop(RUN, 0.0)
    assert driver.reports(RUN) == reports, "a stop of what has ended does nothing"


def test_exit_once_reported_never_changes_and_is_before_that_of_a_later_stop(driver: Driver) -> None:
    driver.start(RUN, {CHIEF: FOREVER, WORKER: Program(code=4)})
    driver.until(lambda: driver.reports(RUN)[WORKER].exit)
    reported = driver.reports(RUN)[WORKER]

    driver.runtime.stop(RUN, 5.0, Reason.HOST_LOST)

    ends = driver.ends(RUN)
    chief, worker = ends[CHIEF], ends[WORKER]
    assert (chief.reason, chief.after_stop) == (Reason.HOST_LOST, True)
    assert (worker.code, worker.after_stop) == (4, False)
    coarse = driver.runtime.traits.coarse_clock
    assert (worker.order, chief.order) == ((1, 2) if coarse else (0, 0))
    assert (worker.finished_at, worker.order) < (chief.finished_at, chief.order)
    for _ in range(2):
        assert driver.reports(RUN)[WORKER] == reported
        driver.lab.reopen().recover()


def test_log_has_every_line_in_order_with_its_stream(driver: Driver) -> None:
    printed = tuple(Print(f"line {n}", "stderr" if n % 3 == 0 else "stdout") for n in range(30))
    driver.start(RUN, {CHIEF: Program(printed, code=0)})

    driver.wait_for_log(RUN, CHIEF)

    lines = driver.runtime.read_log(RUN, CHIEF, 0, 100, 1 << 20).lines
    splits = driver.runtime.traits.splits_streams
    assert splits or {line.stream for line in lines} == {"stdout"}
    for stream in ("stdout", "stderr"):  # between two pipes there is no order to promise
        texts = [line.text for line in printed if line.stream == stream]
        assert [line.text for line in lines if (line.stream == stream if splits else line.text in texts)] == texts
    assert len(lines) == 30


def test_log_that_has_ended_is_read_from_any_line_in_slices(driver: Driver) -> None:
    driver.start(RUN, {CHIEF: Program(tuple(Print(f"line {n}") for n in range(10)), code=0)})
    whole = driver.wait_for_log(RUN, CHIEF)

    sliced: list[str] = []
    complete = False
    while not complete:
        log = driver.runtime.read_log(RUN, CHIEF, len(sliced), 3, 1 << 20)
        assert 0 < len(log.lines) <= 3
        sliced += [line.text for line in log.lines]
        complete = log.complete

    assert sliced == whole == [f"line {n}" for n in range(10)]
    for start in (7, 2, 9, 0, 5):
        log = driver.runtime.read_log(RUN, CHIEF, start, 1, 1 << 20)
        assert [line.text for line in log.lines] == [f"line {start}"]
    alone = driver.runtime.read_log(RUN, CHIEF, 4, 100, 3)  # one line is above the limit of bytes
    assert ([line.text for line in alone.lines], alone.complete) == (["line 4"], False)
    assert driver.runtime.read_log(RUN, CHIEF, 99, 10, 1 << 20) == LogSlice((), complete=True)


def test_metric_file_of_a_trial_is_read_while_it_runs_and_after_its_end(driver: Driver) -> None:
    handle = driver.runtime.place(order(RUN, CHIEF, metric_tag="acc"))
    assert handle.metric_tag == "acc"
    launch = driver.lab.launch(CHIEF, Program((Print("up"),), measures=0.75))
    driver.runtime.start(RUN, [replace(launch, writes_metrics=True)])
    driver.until(lambda: driver.texts(RUN, CHIEF))
    if not driver.runtime.traits.reads_metrics:
        assert driver.runtime.read_metrics(RUN, CHIEF) == b""
        return

    expected = [TrialMeasurement(step=1, value=0.75)]
    assert list(measurements_in(driver.runtime.read_metrics(RUN, CHIEF), "acc")) == expected
    driver.runtime.stop(RUN, 0.0)
    driver.wait_for_exits(RUN)
    assert [one.metric_tag for one in driver.lab.reopen().recover()] == ["acc"]
    assert list(measurements_in(driver.runtime.read_metrics(RUN, CHIEF), "acc")) == expected
    assert driver.runtime.read_metrics(RUN, WORKER) == b""
    driver.runtime.remove(RUN)
    assert driver.runtime.read_metrics(RUN, CHIEF) == b""


def test_usage_counts_cpu_time_up_and_reports_memory_also_by_an_agent_that_comes_back(driver: Driver) -> None:
    driver.start_and_wait(RUN, {CHIEF: BUSY, WORKER: FOREVER})
    if not driver.runtime.traits.measures_usage:
        assert driver.runtime.usage(RUN, CHIEF) is None
        return
    first = driver.usage(RUN, CHIEF)
    assert first.cpu_s >= 0
    assert first.memory_bytes > 0

    driver.until(lambda: driver.usage(RUN, CHIEF).cpu_s > first.cpu_s)

    assert driver.usage(RUN, WORKER).memory_bytes > 0
    assert driver.runtime.usage(RUN, "worker-replica-7") is None
    before = driver.usage(RUN, CHIEF)
    driver.lab.reopen().recover()
    assert driver.usage(RUN, CHIEF).cpu_s >= before.cpu_s
    driver.runtime.stop(RUN, 1.0)
    driver.wait_for_exits(RUN)
    driver.until(lambda: driver.runtime.usage(RUN, CHIEF) is None)


def test_usage_never_loses_what_processes_that_have_ended_have_used(driver: Driver) -> None:
    """A shell that starts one short, busy program after the other."""
    driver.start_and_wait(RUN, {CHIEF: MANY})
    if not driver.runtime.traits.measures_usage:
        assert driver.runtime.usage(RUN, CHIEF) is None
        return
    counted: list[float] = []

    def counted_enough() -> bool:
        counted.append(round(driver.usage(RUN, CHIEF).cpu_s, 6))  # sums of the same floats differ by their order
        return len(set(counted)) > 5

    driver.until(counted_enough)
    assert counted == sorted(counted)


def test_stop_kills_what_ignores_sigterm_after_the_grace(driver: Driver) -> None:
    driver.start_and_wait(RUN, {CHIEF: STUBBORN})

    driver.runtime.stop(RUN, 0.3)

    assert driver.reports(RUN)[CHIEF].exit is None
    ended = driver.end(RUN, CHIEF)
    assert (ended.code, ended.reason, ended.after_stop) == (_known(driver, 137), Reason.STOPPED, True)


def _known(driver: Driver, code: int, task: str = CHIEF) -> int | None:
    """The exit code of a stopped replica; None where the kubelet has lost it."""
    lost = isinstance(driver.lab, KubernetesLab) and driver.lab.has_lost_code(RUN, task)
    return None if lost else code


def test_stop_twice_keeps_the_first_reason_and_the_earlier_kill(driver: Driver) -> None:
    driver.start_and_wait(RUN, {CHIEF: STUBBORN})
    is_cluster = isinstance(driver.lab, KubernetesLab)
    long_s = 20.0 if is_cluster else 600.0  # kubelets of 1.20 may keep to the first one

    driver.runtime.stop(RUN, long_s, Reason.STOPPED)
    driver.runtime.stop(RUN, 0.1, Reason.HOST_SHUTDOWN)
    driver.runtime.stop(RUN, long_s, Reason.HOST_LOST)

    ended = driver.end(RUN, CHIEF)
    assert (ended.code, ended.reason) == (_known(driver, 137), Reason.STOPPED)


@pytest.mark.parametrize("code", [None, 0])
def test_every_descendant_is_gone_once_the_log_is_complete(driver: Driver, code: int | None) -> None:
    driver.start_and_wait(RUN, {CHIEF: Program((Print("up"),), code=code, leaves_orphans=True)})
    if code is None:
        driver.runtime.stop(RUN, 0.2)

    driver.wait_for_log(RUN, CHIEF)

    assert not [left for left in driver.lab.remaining(RUN) if left.startswith("process")]


def test_recover_finds_running_replicas_again_and_a_stop_ends_them_with_sigterm(driver: Driver) -> None:
    driver.start_and_wait(RUN, {CHIEF: FOREVER, WORKER: FOREVER})
    before = driver.reports(RUN)

    handles = driver.lab.reopen().recover()

    assert [(handle.run_id, handle.launched, handle.grace_s) for handle in handles] == [(RUN, True, 5.0)]
    assert driver.runtime.recover() == handles
    assert driver.reports(RUN) == before
    assert driver.texts(RUN, CHIEF) == ["up"]
    changed = threading.Event()
    unsubscribe = driver.runtime.subscribe(changed.set)
    driver.runtime.stop(RUN, 5.0)
    if driver.runtime.traits.tells_changes:
        driver.until(changed.is_set)
    for task, end in driver.ends(RUN).items():
        assert (end.code, end.reason, end.after_stop) == (_known(driver, 143, task), Reason.STOPPED, True)
    assert changed.is_set() == driver.runtime.traits.tells_changes
    unsubscribe()


def test_recover_reports_exits_that_no_agent_saw(driver: Driver) -> None:
    driver.start(RUN, {CHIEF: Program((Print("bye"),), code=6)})
    driver.lab.reopen()

    ended = driver.end(RUN, CHIEF)

    assert ended.code == 6
    assert driver.wait_for_log(RUN, CHIEF) == ["bye"]


def test_recover_undoes_a_run_that_was_only_placed(driver: Driver) -> None:
    driver.place(RUN, CHIEF)

    assert driver.lab.reopen().recover() == []
    assert driver.runtime.observe(RUN) == ()
    assert driver.lab.remaining(RUN) == []


def test_stop_goes_on_without_the_agent(driver: Driver) -> None:
    driver.start_and_wait(RUN, {CHIEF: STUBBORN})
    driver.runtime.stop(RUN, 0.2)

    driver.lab.reopen()

    ended = driver.end(RUN, CHIEF)
    assert ended.code == _known(driver, 137)


def test_vanished_replica_is_reported_and_its_log_is_closed(driver: Driver) -> None:
    driver.start_and_wait(RUN, {CHIEF: Program((Print("up"),), leaves_orphans=False), WORKER: FOREVER})

    driver.lab.kill_supervisor(RUN, WORKER)

    ended = driver.end(RUN, WORKER)
    assert (ended.code, ended.reason, ended.after_stop) == (None, Reason.VANISHED, False)
    assert driver.wait_for_log(RUN, WORKER) == ["up"]
    assert driver.reports(RUN)[CHIEF].state is ReplicaState.RUNNING


def test_remove_leaves_nothing_of_a_running_run(driver: Driver) -> None:
    driver.start_and_wait(RUN, {CHIEF: STUBBORN, WORKER: Program((Print("up"),), leaves_orphans=True)})
    driver.start_and_wait(OTHER, {CHIEF: FOREVER})

    driver.runtime.remove(RUN)
    driver.runtime.remove(RUN)

    assert driver.lab.remaining(RUN) == []
    assert driver.runtime.observe(RUN) == ()
    assert [handle.run_id for handle in driver.runtime.recover()] == [OTHER]
    assert driver.reports(OTHER)[CHIEF].state is ReplicaState.RUNNING


def test_unknown_run_is_harmless(driver: Driver) -> None:
    assert driver.runtime.recover() == []
    assert driver.runtime.observe(RUN) == ()
    assert driver.runtime.read_log(RUN, CHIEF, 0, 10, 100) == LogSlice((), complete=True, missing=None)
    assert driver.runtime.usage(RUN, CHIEF) is None
    driver.runtime.stop(RUN, 1.0)
    driver.runtime.remove(RUN)
    assert driver.runtime.recover() == []
