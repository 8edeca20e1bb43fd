"""Runs of one replica, whose program is a line of shell."""

from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import Driver
from trainyard_agent.runtimes.base import Launch

RUN, TASK = unique_run("1"), "master-replica-0"


def start(driver: Driver, script: str, run_id: str = RUN) -> None:
    driver.place(run_id, TASK)
    driver.runtime.start(run_id, [Launch(TASK, ("/bin/sh", "-c", script), {}, (), 0)])
