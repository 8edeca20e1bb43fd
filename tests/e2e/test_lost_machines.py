"""Machines, agents and servers that are lost, cut off or killed while a job runs over real networks: network namespaces
with processes, whose clocks are real.
"""

import itertools
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from beds.waiting import until
from e2e.machines import Machine
from e2e.test_gang_over_machines import Site, site_at

pytestmark = [pytest.mark.e2e, pytest.mark.long]

numbers = itertools.count(1)
JOB = """
import os, time
print("starts", os.getpid(), flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_at(tmp_path_factory.mktemp("site"), "--usage-every", "0") as site:
        (site.here.home / "stays.py").write_text(JOB)
        yield site


@dataclass
class Job:
    """A job of one replica that runs, its machine, and the other one."""

    job_id: str
    here: Machine
    there: Machine


@contextmanager
def running(site: Site) -> Iterator[Job]:
    """Cancelled at the end, which leaves nothing."""
    until(lambda: all(has_short_lease(site, machine) for machine in (site.one, site.other)))
    job = f"job_{next(numbers)}"
    given = ("--package-path", "stays.py", "--cpus", "2")
    site.here.ok("trainyard", "jobs", "submit", "training", job, *given)
    until(lambda: "starts" in site.lines(job), lambda: site.lines(job))
    machines = (site.one, site.other) if processes(site.one) else (site.other, site.one)
    yield Job(job, *machines)
    site.here.ok("trainyard", "jobs", "cancel", job)
    assert "state: CANCELLED" in site.end(job)
    assert not any(processes(machine) for machine in machines)


def has_short_lease(site: Site, machine: Machine) -> bool:
    name = machine.programs.home.name
    messages = [line for line in site.here.log_of("server").splitlines() if f"Agent {name} has its lease" in line]
    return bool(messages) and "by a majority of 2 and the server: 45" in messages[-1]


def processes(machine: Machine) -> list[str]:
    found = subprocess.run(["ip", "netns", "pids", machine.namespace], capture_output=True, text=True, check=True)
    return [pid for pid in found.stdout.split() if "stays" in Path(f"/proc/{pid}/cmdline").read_text()]


def link(machine: Machine, state: str) -> None:
    subprocess.run(["ip", "-n", machine.namespace, "link", "set", "eth0", state], check=True)


def lease_age_s(machine: Machine) -> float:
    text = (machine.programs.home / "agent" / "lease.json").read_text().splitlines()[0]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - float(json.loads(text)["heard"])


def all_alive(site: Site) -> bool:
    return site.here.ok("trainyard", "agents", "list", "--format", "value(state)").split() == ["alive"] * 2


def test_cut_of_ten_seconds_is_not_noticed(site: Site) -> None:
    with running(site) as job:
        before = processes(job.here)
        link(job.here, "down")
        until(lambda: lease_age_s(job.here) > 15)  # it has had no answer for ten seconds
        link(job.here, "up")
        until(lambda: lease_age_s(job.here) < 10)
        assert (processes(job.here), site.lines(job.job_id).count("starts")) == (before, 1)


def test_machine_that_is_cut_off_stops_its_replica_and_the_job_goes_on_elsewhere(site: Site) -> None:
    with running(site) as job:
        link(job.here, "down")
        until(lambda: processes(job.there))
        assert not processes(job.here), "it had ended before"
        link(job.here, "up")
        until(lambda: all_alive(site))
        assert (bool(processes(job.here)), bool(processes(job.there))) == (False, True)
        assert "HOST_LOST" in site.here.ok("trainyard", "jobs", "describe", job.job_id, "--all")


def test_server_that_is_away_longer_than_a_lease_stops_nothing(site: Site) -> None:
    with running(site) as job:
        before = processes(job.here)
        site.here.end("server", signal.SIGKILL)
        killed_at = time.monotonic()
        until(lambda: time.monotonic() - killed_at > 60 and lease_age_s(job.here) < 20)
        assert processes(job.here) == before
        site.start_server()
        until(lambda: all_alive(site))
        assert (processes(job.here), site.lines(job.job_id).count("starts")) == (before, 1)


def test_agent_that_is_killed_leaves_a_watchdog_that_keeps_the_short_lease(site: Site) -> None:
    with running(site) as job:
        job.here.programs.end("agent", signal.SIGKILL)
        until(lambda: processes(job.there))
        assert not processes(job.here), "the watchdog had ended it before"
