"""A replica whose program has failed is kept in every runtime: as it is, for a time, or until a stop."""

from dataclasses import replace

from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import Driver, Program
from trainyard_agent.engines.fake import Print
from trainyard_agent.runtimes.base import KEPT, Keep
from trainyard_protocol.states import Reason, ReplicaState

CHIEF, WORKER, EVALUATOR = "master-replica-0", "worker-replica-0", "evaluator-replica-0"
RUN = unique_run("1")


def start(driver: Driver, programs: dict[str, Program], keep: Keep) -> None:
    driver.place(RUN, *programs)
    launches = [driver.lab.launch(task, program) for task, program in programs.items()]
    driver.runtime.start(RUN, [replace(launch, keep=keep) for launch in launches])


def kept(driver: Driver, task: str) -> list[str]:
    return [text for text in driver.texts(RUN, task) if KEPT in text]


def test_replica_is_kept_until_a_stop_with_what_it_has(driver: Driver) -> None:
    start(driver, {CHIEF: Program((Print("bye"),), code=3)}, Keep(600, "contract"))
    driver.until(lambda: kept(driver, CHIEF))
    report = driver.reports(RUN)[CHIEF]
    assert (report.state, report.exit) == (ReplicaState.RUNNING, None)
    assert driver.texts(RUN, CHIEF)[0] == "bye"

    driver.runtime.stop(RUN, 60.0)

    ended = driver.end(RUN, CHIEF)
    assert (ended.reason, ended.after_stop) == (Reason.STOPPED, True)


def test_program_ends_as_it_would_once_its_time_is_over(driver: Driver) -> None:
    """At once after success, and with an exit code that leads to another run."""
    programs = {CHIEF: Program(code=3), WORKER: Program((Print("fine"),), code=0), EVALUATOR: Program(code=7)}
    start(driver, programs, Keep(1, "contract", (7,)))

    ends = driver.ends(RUN)

    assert {task: (end.code, end.reason, end.after_stop) for task, end in ends.items()} == {
        CHIEF: (3, Reason.PROGRAM_ERROR, False),
        WORKER: (0, Reason.COMPLETED, False),
        EVALUATOR: (7, Reason.PROGRAM_ERROR, False),
    }
    driver.wait_for_log(RUN, CHIEF)
    assert [bool(kept(driver, task)) for task in programs] == [True, False, False]


def test_stop_reaches_the_program_once(real_driver: Driver) -> None:
    source = """
import signal, sys, time
count = 0
def end(*_):
    global count
    count += 1
    print("SIGTERM", count, flush=True)
    time.sleep(0.5)
    sys.exit(5)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(600)
"""
    start(real_driver, {CHIEF: Program(python=source)}, Keep(600, "contract"))
    real_driver.until(lambda: real_driver.texts(RUN, CHIEF) == ["up"])
    real_driver.runtime.stop(RUN, 60.0)
    assert real_driver.end(RUN, CHIEF).after_stop
    assert real_driver.wait_for_log(RUN, CHIEF) == ["up", "SIGTERM 1"]
