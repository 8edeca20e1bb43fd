"""Capacity: concurrent jobs share no resources, and a third one waits."""

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
