"""Machines, agents and servers that are lost, cut off or killed while a gang runs on two of three machines, over real
networks: network namespaces with processes, whose clocks are real.
"""

import itertools
import json
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from beds.waiting import until
from e2e.machines import Machine
from e2e.test_gang_over_machines import Site, ring_pids, site_at

pytestmark = [pytest.mark.e2e, pytest.mark.long]

REPLICAS = 4
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_at(tmp_path_factory.mktemp("site"), "--usage-every", "0", boxes=3) as site:
        yield site


@dataclass
class Gang:
    """A gang that runs on `one` and `other`, with the processes of its first run. `free` has none."""

    job_id: str
    one: Machine
    other: Machine
    free: Machine
    first: Mapping[str, list[str]]


@contextmanager
def running(site: Site) -> Iterator[Gang]:
    """Cancelled at the end, which leaves nothing."""
    until(lambda: site.all_alive() and all(has_short_lease(site, machine) for machine in site.boxes))
    job = f"job_{next(numbers)}"
    site.submit(job, "--stay")
    until(lambda: met(site, job) == REPLICAS, lambda: site.lines(job))
    one, other, free = sorted(site.boxes, key=lambda machine: not ring_pids(machine))
    first = {machine.namespace: ring_pids(machine) for machine in (one, other)}
    assert [len(pids) for pids in first.values()] == [2, 2]
    yield Gang(job, one, other, free, first)
    site.here.ok("trainyard", "jobs", "cancel", job)
    assert "state: CANCELLED" in site.end(job)
    until(lambda: not any(ring_pids(machine) for machine in site.boxes))


def met(site: Site, job: str) -> int:
    """The number of replicas that have met all others, in all runs of the job."""
    return site.lines(job).count(" met ")


def is_as_before(site: Site, gang: Gang) -> bool:
    now = {machine.namespace: ring_pids(machine) for machine in (gang.one, gang.other)}
    return now == gang.first and met(site, gang.job_id) == REPLICAS


def has_short_lease(site: Site, machine: Machine) -> bool:
    name = machine.programs.home.name
    messages = [line for line in site.here.log_of("server").splitlines() if f"Agent {name} has its lease" in line]
    return bool(messages) and "by a majority of 3 and the server: 45" in messages[-1]


def link(machine: Machine, state: str) -> None:
    subprocess.run(["ip", "-n", machine.namespace, "link", "set", "eth0", state], check=True)


def lease_age_s(machine: Machine) -> float:
    text = (machine.programs.home / "agent" / "lease.json").read_text().splitlines()[0]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - float(json.loads(text)["heard"])


def test_cut_of_ten_seconds_is_not_noticed(site: Site) -> None:
    with running(site) as gang:
        link(gang.one, "down")
        until(lambda: lease_age_s(gang.one) > 15)  # it has had no answer for ten seconds
        link(gang.one, "up")
        until(lambda: lease_age_s(gang.one) < 10)
        assert is_as_before(site, gang)


def test_machine_that_is_back_after_its_lease_has_stopped_its_part_and_the_gang_starts_again(site: Site) -> None:
    """Within 40 s, the server has not taken it for lost."""
    with running(site) as gang:
        link(gang.one, "down")
        until(lambda: not ring_pids(gang.one))
        link(gang.one, "up")
        until(lambda: met(site, gang.job_id) == 2 * REPLICAS, lambda: site.lines(gang.job_id))
        assert "HOST_LOST" in site.here.ok("trainyard", "jobs", "describe", gang.job_id, "--all")


def test_machine_that_is_cut_off_stops_its_part_and_the_gang_goes_on_elsewhere(site: Site) -> None:
    with running(site) as gang:
        link(gang.one, "down")
        until(lambda: ring_pids(gang.free))
        assert not ring_pids(gang.one), "it had ended before"
        assert not set(gang.first[gang.other.namespace]) & set(ring_pids(gang.other)), "so had the other part"
        until(lambda: met(site, gang.job_id) == 2 * REPLICAS, lambda: site.lines(gang.job_id))
        link(gang.one, "up")
        until(site.all_alive)
        assert [len(ring_pids(machine)) for machine in (gang.one, gang.other, gang.free)] == [0, 2, 2]
        assert "HOST_LOST" in site.here.ok("trainyard", "jobs", "describe", gang.job_id, "--all")


def test_server_that_is_away_longer_than_a_lease_stops_nothing(site: Site) -> None:
    with running(site) as gang:
        site.here.end("server", signal.SIGKILL)
        killed_at = time.monotonic()
        until(lambda: time.monotonic() - killed_at > 60 and lease_age_s(gang.one) < 20)
        assert all(ring_pids(machine) == gang.first[machine.namespace] for machine in (gang.one, gang.other))
        site.start_server()
        until(site.all_alive)
        assert is_as_before(site, gang)


def test_agent_that_is_killed_leaves_a_watchdog_that_keeps_the_short_lease(site: Site) -> None:
    with running(site) as gang:
        gang.other.programs.end("agent", signal.SIGKILL)
        until(lambda: ring_pids(gang.free))
        assert not ring_pids(gang.other), "the watchdog had ended it before"
        until(lambda: met(site, gang.job_id) == 2 * REPLICAS, lambda: site.lines(gang.job_id))
