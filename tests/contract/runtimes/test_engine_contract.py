"""Acts of engines that span hosts, and how their runtimes report them."""

from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import FOREVER, STUBBORN, Driver, EngineLab, Program
from trainyard_agent.engines.fake import Print
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.logs import LogGap, LogPosition

CHIEF, WORKER, OTHER = "master-replica-0", "worker-replica-0", "worker-replica-1"
RUN = unique_run("1")


def test_preempted_replica_is_reported_as_such_unless_a_stop_or_its_end_came_before(engine_lab: EngineLab) -> None:
    driver = Driver(engine_lab)
    driver.start_and_wait(RUN, {CHIEF: STUBBORN, WORKER: FOREVER, OTHER: Program(code=4)})
    driver.until(lambda: driver.reports(RUN)[OTHER].exit)

    for task in (CHIEF, OTHER):
        engine_lab.preempt(RUN, task)
    driver.lab.pause()
    driver.runtime.stop(RUN, 0.1)
    engine_lab.preempt(RUN, WORKER)

    ends = driver.ends(RUN)
    assert {task: (e.code, e.reason, e.after_stop) for task, e in ends.items()} == {
        CHIEF: (137, Reason.PREEMPTED, False),
        WORKER: (143, Reason.STOPPED, True),
        OTHER: (4, Reason.PROGRAM_ERROR, False),
    }


def test_replica_that_the_engine_has_not_started_says_what_it_waits_for(engine_lab: EngineLab) -> None:
    driver = Driver(engine_lab)
    driver.start(RUN, {CHIEF: FOREVER, WORKER: Program((Print("up"),), waits="no room for it")})

    waiting = driver.reports(RUN)[WORKER]
    assert (waiting.state, waiting.waits) == (ReplicaState.STARTING, "no room for it")
    assert driver.reports(RUN)[CHIEF].waits == ""
    driver.until(lambda: driver.reports(RUN)[WORKER].state is ReplicaState.RUNNING)
    assert driver.reports(RUN)[WORKER].waits == ""


def test_log_goes_on_from_a_position_and_tells_what_may_have_been_dropped(engine_lab: EngineLab) -> None:
    driver = Driver(engine_lab)
    driver.start(RUN, {CHIEF: Program(tuple(Print(f"line {n}") for n in range(6)), code=0)})
    driver.wait_for_log(RUN, CHIEF)
    known = driver.runtime.read_log(RUN, CHIEF, 0, 2, 1 << 20).lines
    position = LogPosition(next=2, last_time=known[-1].time, same_time=2)

    engine_lab.drop_log(RUN, CHIEF, 2)
    runtime = driver.lab.reopen()
    runtime.recover()
    runtime.resume_log(RUN, CHIEF, position)
    found = runtime.read_log(RUN, CHIEF, 2, 10, 1 << 20)
    assert ([line.text for line in found.lines], found.gap) == ([f"line {n}" for n in range(2, 6)], None)
    assert found.complete

    engine_lab.drop_log(RUN, CHIEF, 4)
    runtime = driver.lab.reopen()
    runtime.resume_log(RUN, CHIEF, position)
    found = runtime.read_log(RUN, CHIEF, 2, 10, 1 << 20)
    assert [line.text for line in found.lines] == ["line 4", "line 5"]
    assert found.gap == LogGap(after=known[-1].time, before=found.lines[0].time)
    assert runtime.read_log(RUN, CHIEF, 2, 10, 1 << 20) == found  # whoever reads first
