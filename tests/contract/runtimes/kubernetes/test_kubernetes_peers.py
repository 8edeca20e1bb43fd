"""Replicas of a gang start once all of them have names."""

from dataclasses import replace

import pytest

from beds.kubernetes.bed import BASE_IMAGE
from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import FOREVER, Driver, KubernetesLab, Program, order
from trainyard_agent.engines.kubernetes.pods import objects
from trainyard_protocol.states import Reason

pytestmark = pytest.mark.long

CHIEF, WORKER = "master-replica-0", "worker-replica-0"
RUN, NEXT = unique_run("1"), unique_run("2")


def ends(driver: Driver, run: str) -> dict[str, tuple[int | None, Reason]]:
    reports = driver.wait_for_exits(run)
    return {task: (one.exit.code, one.exit.reason) for task, one in reports.items() if one.exit is not None}


def test_first_look_up_of_each_replica_finds_all_others(kubernetes_lab: KubernetesLab) -> None:
    """Those that wait for one without a node say so, and are stopped before they start."""
    driver = Driver(kubernetes_lab)
    kubernetes_lab.init_image = BASE_IMAGE
    kubernetes_lab.reopen()
    names = [address.partition(":")[0] for address in objects.addresses(order(RUN, CHIEF, WORKER)).values()]
    looks_up = Program(shell="\n".join(f"getent hosts {name} || exit 1" for name in names), code=0)
    driver.start(RUN, {CHIEF: looks_up, WORKER: looks_up})
    assert ends(driver, RUN) == dict.fromkeys((CHIEF, WORKER), (0, Reason.COMPLETED))

    driver.place(NEXT, CHIEF, WORKER)
    chief, worker = (driver.lab.launch(task, FOREVER) for task in (CHIEF, WORKER))
    driver.runtime.start(NEXT, [chief, replace(worker, vcpus=10_000, memory_bytes=1 << 20)])
    driver.until(lambda: driver.reports(NEXT)[CHIEF].waits == "waits for peers")
    assert "Insufficient cpu" in driver.reports(NEXT)[WORKER].waits
    driver.runtime.stop(NEXT, 5.0, Reason.GIVEN_BACK)
    assert ends(driver, NEXT) == dict.fromkeys((CHIEF, WORKER), (None, Reason.GIVEN_BACK))
