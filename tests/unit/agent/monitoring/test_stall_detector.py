"""When a replica stands still, by its own lines and the seconds in which the agent looked."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_agent.engines.fake import FakeHost, FakeRuntime, Print, Script
from trainyard_agent.host.clock import ManualClock
from trainyard_agent.monitoring.stack_dump import LIMIT, StackDumper
from trainyard_agent.monitoring.stall_detector import StepHistory
from trainyard_agent.monitoring.stall_monitor import STACKS_BYTES, StallMonitor, that_fit
from trainyard_agent.runtimes.base import KEPT, Launch
from trainyard_protocol.lines.progress import ProgressEvent
from trainyard_protocol.wire.sync import StallPolicy
from unit.agent.stub_server import run_order

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
POLICY = StallPolicy(least_s=10, factor=5)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def stepping(*times: float) -> StepHistory:
    """A replica that reported step 1, 2, ... at these times."""
    watched = StepHistory()
    for step, time in enumerate(times, 1):
        watched.add(ProgressEvent("progress", step), at(time))
    return watched


def wait(watched: StepHistory, seconds: float, policy: StallPolicy = POLICY) -> None:
    """The agent looks each second, and each time has read all that there is."""
    for _ in range(int(seconds)):
        watched.add_idle(1, policy)


def test_replica_stalls_after_the_least_time() -> None:
    watched = stepping(0, 1, 2, 3)
    wait(watched, 10)
    assert not watched.is_stalled(POLICY)
    wait(watched, 1)
    assert watched.is_stalled(POLICY)
    stall = watched.stall(POLICY)
    assert (stall.step, stall.since, stall.for_s, stall.longest_s, stall.limit_s) == (4, at(3), 11, 1, 10)


def test_limit_that_is_set_holds_from_the_first_step_on_whatever_the_history() -> None:
    limit = StallPolicy(least_s=300, factor=10, limit_s=5)
    none, one = stepping(0), stepping(0, 100)
    for watched in (none, one):
        wait(watched, 6, limit)
    assert not none.is_stalled(limit)
    assert one.is_stalled(limit)


@pytest.mark.parametrize(
    ("mark", "is_sign"),
    [
        (ProgressEvent("heartbeat", 4), False),
        (ProgressEvent("heartbeat", 5), True),
        (ProgressEvent("heartbeat"), False),
        (ProgressEvent("evaluation", 4), True),
        (ProgressEvent("checkpoint", 4), True),
        (ProgressEvent("saved"), True),
        (ProgressEvent("start", stacks="SIGUSR1"), False),
    ],
)
def test_which_lines_are_signs_of_a_replica(mark: ProgressEvent, is_sign: bool) -> None:
    watched = stepping(0, 1, 2, 3)
    wait(watched, 9)
    watched.add(mark, at(12))
    wait(watched, 3)
    assert watched.is_stalled(POLICY) is not is_sign


@pytest.mark.parametrize(
    "last", [ProgressEvent("done", 4), ProgressEvent("stopped", 4), ProgressEvent("progress", 9, 9)]
)
def test_replica_that_has_no_further_step_to_take_does_not_stall(last: ProgressEvent) -> None:
    watched = stepping(0, 1, 2, 3)
    watched.add(last, at(4))
    wait(watched, 1000)
    assert not watched.is_stalled(POLICY)
    watched.add(ProgressEvent("progress", 10), at(5))  # it was not the last after all
    wait(watched, 1000)
    assert watched.is_stalled(POLICY)


@given(st.lists(st.floats(0.01, 100), min_size=4, max_size=50), st.floats(1, 20))
def test_replica_that_keeps_to_its_own_pace_never_stalls(gaps: list[float], factor: float) -> None:
    """No wait that is as long as one before it, times the factor, is a stall."""
    policy = StallPolicy(least_s=0, factor=factor)
    watched, now = StepHistory(), 0.0
    for step, gap in enumerate(gaps):
        allowed = factor * watched.longest_s
        if gap < allowed:
            for _ in range(10):
                watched.add_idle(gap / 10, policy)
                assert not watched.is_stalled(policy)
        now += gap
        watched.add(ProgressEvent("progress", step), at(now))


RUN, TASK = "1" * 32, "master-replica-0"


def test_stacks_of_many_replicas_fit_into_a_report() -> None:
    """A report that is larger than the server reads would cut the agent off while its runs hang."""
    gang = {f"worker-replica-{n}": '\x01"\n' * (LIMIT // 3) for n in range(1000)}
    kept = that_fit(gang, ())
    size = sum(len(json.dumps(text)) for text in kept.values())
    assert STACKS_BYTES - 10 * LIMIT < size <= STACKS_BYTES
    assert list(kept) == list(gang)[: len(kept)]
    assert that_fit({"master-replica-0": "x" * STACKS_BYTES}, kept.values()) == {}
    assert that_fit({"master-replica-0": "x"}, ()) == {"master-replica-0": "x"}


@pytest.mark.parametrize("is_kept", [False, True])
async def test_run_with_a_kept_replica_does_not_stall(is_kept: bool) -> None:
    """The others wait for it, as for one that hangs."""
    steps = tuple((float(n), Print(json.dumps({"event": "progress", "step": n}))) for n in range(10))
    failed = Script((*steps, (10.0, Print(f"no newline{KEPT} 600 s")))) if is_kept else Script(steps)
    scripts = {TASK: Script(steps), "worker-replica-0": failed}
    clock = ManualClock()
    runtime = FakeRuntime(FakeHost(clock, lambda launch: scripts[launch.task]))
    order = run_order(RUN, *scripts).model_copy(update={"stall": StallPolicy(least_s=60, factor=5)})
    runtime.place(order)
    runtime.start(RUN, [Launch(task, (), {}, (), 0) for task in scripts])
    monitor = StallMonitor(runtime, clock, StackDumper(runtime))
    reports = runtime.observe(RUN)
    for _ in range(200):
        await monitor.poll([order], {RUN: reports})
        clock.advance(1.0)
    assert any(report.stall for report in monitor.annotate(RUN, reports)) is not is_kept
