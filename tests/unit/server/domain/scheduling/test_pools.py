"""Gangs on an engine: by sums, and each replica on a node."""

from dataclasses import replace

import pytest

from trainyard_protocol.job.resources import GIGABYTE, Capacity, Pool
from trainyard_server.domain.scheduling.candidates import candidates
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang
from trainyard_server.domain.scheduling.scheduler import NO_QUOTAS, plan
from trainyard_server.domain.snapshots import JobSnapshot
from unit.server.domain.scheduling.queue_support import NOW, agent, only, placed, queued

H100 = "NVIDIA_H100_80GB"
SMALL = Pool(nodes=2, vcpus=8, memory_bytes=32 * GIGABYTE)
LARGE = Pool(nodes=2, vcpus=16, memory_bytes=64 * GIGABYTE, accelerator_type=H100, accelerator_count=4)
THREE = SMALL.model_copy(update={"nodes": 3})


def cluster(*pools: Pool) -> AgentSnapshot:
    return replace(agent("cluster", mode="fit"), capacity=Capacity.of_pools(*pools or (SMALL, LARGE)))


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (queued(1, cpus=17), "needs 17 vCPU and 2.0 GB; the largest agent, cluster, has 48 vCPU"),
        (queued(1, 3, cpus=9), "needs 27 vCPU"),  # two nodes have 9
        (queued(1, 3, cpus=1, gpus=3, kind=H100), "needs 3 vCPU"),  # two nodes have 3 devices
        (queued(1, gpus=1), "192.0 GB and 8 x NVIDIA_H100_80GB on 4 nodes"),
    ],
)
def test_gang_that_fits_on_no_nodes_never_starts_and_is_not_scaled_down(job: JobSnapshot, why: str) -> None:
    waiting = plan([job], [cluster()], NOW).waiting[1]
    assert waiting.kind == "never"
    assert why in waiting.reason


def test_nodes_for_accelerators_alone_take_no_other_replica() -> None:
    guarded = LARGE.model_copy(update={"accelerators_only": True})
    assert placed(plan([queued(1, cpus=1), queued(2, gpus=1, kind=H100)], [cluster(guarded)], NOW)) == [2]


def test_small_replicas_leave_the_nodes_with_devices_to_those_that_need_them() -> None:
    jobs = [queued(1, 4, cpus=4, gb=1, age=9), queued(2, 2, cpus=16, gb=1, gpus=4, kind=H100)]
    assert placed(plan(jobs, [cluster()], NOW)) == [1, 2]


def test_gang_waits_where_the_sum_is_free_but_no_node() -> None:
    running = only(plan([queued(1, 3, cpus=5, gb=1)], [cluster(THREE)], NOW))
    busy = replace(cluster(THREE), gangs=(Gang.of(running.assignments, 1, "p"),))
    waiting = plan([queued(2, 2, cpus=4, gb=1)], [busy], NOW).waiting[2]
    assert (waiting.kind, waiting.reason) == (
        "room",
        "needs 8 vCPU and 2.0 GB; agent cluster has 24 vCPU, of which 9 are free, "
        "but not with room for each replica on a node",
    )
    (view,) = candidates(queued(2, 2, cpus=4, gb=1), [busy], NO_QUOTAS)
    assert (view.has, view.free) == ("24 vCPU and 96.0 GB on 3 nodes", "9 vCPU and 93.0 GB")
    assert view.lacks == "lacks room for each replica on a node"
    assert placed(plan([queued(3, 3, cpus=3, gb=1)], [busy], NOW)) == [3]


def test_engine_with_a_queue_of_its_own_gets_runs_in_order_whatever_is_free() -> None:
    """Runs that wait there are limited; those that run count no more. Quotas hold, and what fits no node never goes."""
    busy = tuple(
        Gang.of(only(plan([queued(key, 2, cpus=8, gb=1)], [cluster(SMALL)], NOW)).assignments, key, "p", waits=waits)
        for key, waits in ((1, False), (2, True))
    )
    kueue = replace(cluster(SMALL), in_flight=2, gangs=busy)
    jobs = [
        queued(3, 2, cpus=8, gb=1, age=5),
        queued(4, 2, cpus=8, gb=1, age=9),
        queued(5, cpus=1, gb=1),
        queued(6, cpus=9, gb=1, age=20),
    ]
    answer = plan(jobs, [kueue], NOW)
    assert placed(answer) == [4]
    full = "2 runs wait in the own queue of agent cluster, which gets no more at once (--in-flight)"
    assert {key: (one.kind, one.reason) for key, one in answer.waiting.items() if key != 6} == {
        3: ("room", f"{full}; 1 job ahead"),
        5: ("room", f"{full}; 2 jobs ahead"),
    }
    assert answer.waiting[6].kind == "never"

    limits = Quotas(default={"vcpus": 32})
    assert plan(jobs[:1], [kueue], NOW, limits).waiting[3].kind == "quota"
    (view,) = candidates(jobs[0], [replace(kueue, in_flight=1)], NO_QUOTAS)
    assert view.lacks == "1 run waits in the own queue of agent cluster, which gets no more at once (--in-flight)"
    (view,) = candidates(jobs[0], [kueue], NO_QUOTAS)
    assert (view.lacks, view.home) == ("", True)
