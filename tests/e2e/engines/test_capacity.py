"""Capacity: concurrent jobs share no resources, a third waits, a gang too large is scaled down."""

import json

from beds.waiting import until
from e2e.harness import Service, local

HOLDS = """
import json, os, pathlib, time
address = json.loads(os.environ["TF_CONFIG"])["cluster"]["chief"][0]
held = {"cpus": sorted(os.sched_getaffinity(0)), "address": address, "cwd": os.getcwd()}
print("HOLDS", json.dumps(held), flush=True)
while not (pathlib.Path(os.environ["TRAINYARD_JOB_DIR"]) / "go").exists():
    time.sleep(0.05)
"""


def held(service: Service, job: str) -> dict[str, object]:
    found = [line.split("HOLDS ")[1] for line in service.log(job).splitlines() if "HOLDS " in line]
    return json.loads(found[0]) if found else {}


def release(service: Service, job: str) -> None:
    (service.job_dir(job) / "go").touch()


def test_two_jobs_at_once_share_no_cpu_port_or_directory_and_a_third_waits_with_a_reason(
    strict_service: Service,
) -> None:
    service = strict_service
    service.program(HOLDS)
    service.config(**local())
    for job in ("one", "two", "three"):
        service.ok("jobs", "submit", "training", job, "--config", "config.yaml")
    for job in ("one", "two"):
        until(lambda job=job: held(service, job), f"{job} to run")  # type: ignore[misc]
    one, two = held(service, "one"), held(service, "two")
    assert one["cpus"] != two["cpus"]
    assert not set(one["cpus"]) & set(two["cpus"])  # type: ignore[call-overload]
    assert one["address"] != two["address"]
    assert one["cwd"] != two["cwd"]
    assert service.state("three") == "QUEUED"
    waiting = json.loads(service.ok("jobs", "describe", "three", "-o", "json", "--all"))["waiting"]
    assert "1 vCPU" in waiting
    assert "0 are free" in waiting
    for job in ("one", "two"):
        release(service, job)
    until(lambda: held(service, "three"), "three to run")
    release(service, "three")
    for job in ("one", "two", "three"):
        service.wait_for(job, "SUCCEEDED")


def test_gang_larger_than_a_strict_machine_waits_without_blocking_others(
    strict_service: Service,
) -> None:
    service = strict_service
    service.program("print('hello')\n")
    service.config(scaleTier="CUSTOM", masterType="n1-standard-96")
    service.ok("jobs", "submit", "training", "huge", "--config", "config.yaml")
    service.config(**local())
    service.train("small", "--config", "config.yaml")
    assert service.state("huge") == "QUEUED"
    waiting = json.loads(service.ok("jobs", "describe", "huge", "-o", "json", "--all"))["waiting"]
    assert "96 vCPU" in waiting
    service.ok("jobs", "cancel", "huge")
    service.wait_for("huge", "CANCELLED")


def test_gang_larger_than_a_fitting_machine_is_scaled_down_with_an_event(service: Service) -> None:
    service.program("print('hello')\n")
    service.config(
        scaleTier="CUSTOM", masterType="n1-standard-96", workerType="n1-standard-96", workerCount=1
    )
    output = service.train("scaled", "--config", "config.yaml")
    assert "each asked for 96 vCPU" in output
    assert service.state("scaled") == "SUCCEEDED"
