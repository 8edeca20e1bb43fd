import json

import pytest

from trainyard_agent.engines.fake import FakeHost, FakeRuntime, Print, Script
from trainyard_agent.host.clock import ManualClock
from trainyard_agent.monitoring.stack_dump import LIMIT, StackDumper
from trainyard_agent.monitoring.stall_monitor import STACKS_BYTES, StallMonitor, that_fit
from trainyard_agent.runtimes.base import KEPT, Launch
from trainyard_protocol.wire.sync import StallPolicy
from unit.agent.stub_server import run_order

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
