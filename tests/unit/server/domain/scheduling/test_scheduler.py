from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.job.resources import GIGABYTE
from trainyard_server.domain.scheduling.scheduler import plan
from unit.server.domain.scheduling.queue_support import NOW, agent, only, placed, queued, request, waiting


def test_jobs_are_taken_by_priority_then_age() -> None:
    rows = ((0, 1000), (1, 999), (999, 1), (1000, 0), (1, 1000))
    jobs = [queued(n, priority=priority, age=age) for n, (priority, age) in enumerate(rows)]
    for free in range(6):
        result = plan(jobs, [agent(cpus=free, gb=64)], NOW)
        assert placed(result) == [3, 2, 4, 1, 0][:free]
        positions = {key: waiting.position for key, waiting in result.waiting.items()}
        assert positions == {key: n + 1 for n, key in enumerate([3, 2, 4, 1, 0][free:])}


def test_job_that_can_never_start_holds_back_nobody() -> None:
    result = plan([queued(1, cpus=16, gb=60, age=9), queued(2)], [agent()], NOW)
    assert placed(result) == [2]
    assert result.waiting[1].kind == "never"
    assert result.waiting[1].reason == (
        "can never start on the agents here: needs 16 vCPU and 60.0 GB; "
        "the largest agent, laptop, has 2 vCPU and 8.0 GB"
    )


def test_gpus_are_given_by_id_and_compared_without_case() -> None:
    jobs = [queued(1, gpus=1, age=1), queued(2, gpus=1)]
    host = agent(gpus=("nvidia_tesla_t4", "NVIDIA_TESLA_P4", "Nvidia_Tesla_T4"))
    result = plan(jobs, [host], NOW)
    assert [p.assignments[0].gpus for p in result.placements] == [("laptop-0",), ("laptop-2",)]


def test_agent_that_is_left_with_least_is_chosen() -> None:
    result = plan([queued(1)], [agent("big", 8), agent("small", 1), agent("middle", 4)], NOW)
    assert only(result).agent_id == "small"


def test_image_goes_only_where_images_run() -> None:
    result = plan([queued(1, needs_images=True)], [agent("a", 1), agent("b", 4, runs_images=True)], NOW)
    assert only(result).agent_id == "b"
    assert plan([queued(1, needs_images=True)], [agent()], NOW).waiting[1].kind == "never"


def test_fit_scales_a_gang_down_to_the_machine() -> None:
    placement = only(plan([queued(1, 2, cpus=8, gb=30)], [agent(mode="fit")], NOW))
    assert [a.cpus for a in placement.assignments] == [(0,), (1,)]
    assert [a.memory_bytes for a in placement.assignments] == [4 * GIGABYTE] * 2
    assert placement.scaled == (
        "Scaled down to fit agent laptop (2 vCPU and 8.0 GB): master-replica-0 to worker-replica-0 each "
        "asked for 8 vCPU and 30.0 GB and gets 1 vCPU and 4.0 GB."
    )
    in_memory_alone = only(plan([queued(1, 2, cpus=1, gb=30)], [agent(cpus=4, mode="fit")], NOW)).assignments
    assert [(a.cpus, a.memory_bytes) for a in in_memory_alone] == [((0,), 4 * GIGABYTE), ((1,), 4 * GIGABYTE)]


def test_fit_gives_cpus_in_proportion_and_at_least_one_each() -> None:
    gang = (request(0, 12), request(1, 3), request(2, 1))
    placement = only(plan([waiting(1, gang)], [agent(cpus=8, mode="fit")], NOW))
    assert [len(a.cpus) for a in placement.assignments] == [6, 1, 1]
    assert sorted(cpu for a in placement.assignments for cpu in a.cpus) == list(range(8))


def test_fit_takes_the_gpus_there_are_of_any_type() -> None:
    host = agent(cpus=4, gpus=("NVIDIA_TESLA_P4",), mode="fit")
    placement = only(plan([queued(1, 2, gpus=2)], [host], NOW))
    assert [a.gpus for a in placement.assignments] == [("laptop-0",), ()]
    assert "1 x GPU of another type" in placement.scaled
    assert placement.without_gpus == (
        "worker-replica-0 asked for 2 x NVIDIA_TESLA_T4, but agent laptop has no GPU for it: CPUs do all the work."
    )


def test_fit_without_any_gpu_gives_none() -> None:
    placement = only(plan([queued(1, gpus=8)], [agent(mode="fit")], NOW))
    assert placement.assignments[0].gpus == ()
    assert "asked for 1 vCPU, 2.0 GB and 8 x NVIDIA_TESLA_T4 and gets 1 vCPU and 2.0 GB" in placement.scaled
    several = only(plan([queued(1, 2, gpus=1)], [agent(mode="fit")], NOW)).without_gpus
    assert several.startswith("master-replica-0 to worker-replica-0 asked for 1 x NVIDIA_TESLA_T4, but agent")
    assert not only(plan([queued(1, 4)], [agent(mode="fit")], NOW)).without_gpus, "scaled down, and asked for none"


@pytest.mark.parametrize("mode", ["fit", "strict"])
def test_tpus_are_waited_for_and_never_scaled_down(mode: str) -> None:
    jobs = [waiting(1, [request(0, 4), request(1, 4, gpus=8, kind="TPU_V2")])]
    small = agent(cpus=4, gb=64, gpus=("NVIDIA_TESLA_T4", "TPU_V3"), mode=mode)
    result = plan(jobs, [small], NOW)
    assert result.placements == ()
    assert result.waiting[1].reason == ("needs an agent with 8 x TPU_V2 (`--tpus` of the agent), and there is none")
    with_tpu = agent("tpu", cpus=8, gb=64, gpus=("TPU_V2",) * 8, mode=mode)
    placement = only(plan(jobs, [small, with_tpu], NOW))
    assert [len(one.gpus) for one in placement.assignments] == [0, 8]
    # A gang without TPUs that asks for GPUs gets none of its cores.
    scaled_down = only(plan([queued(2, gpus=1)], [agent("tpu", gpus=("TPU_V2",) * 8, mode="fit")], NOW))
    assert scaled_down.assignments[0].gpus == ()


@pytest.mark.parametrize("mode", ["strict", "fit"])
@given(data=st.data())
def test_plan_never_gives_anything_twice_and_forgets_nobody(mode: str, data: st.DataObject) -> None:
    kinds = ("A", "B")
    agents = [
        agent(f"a{n}", cpus, gb, tuple(gpus), mode)
        for n, (cpus, gb, gpus) in enumerate(
            data.draw(
                st.lists(
                    st.tuples(st.integers(1, 6), st.integers(1, 16), st.lists(st.sampled_from(kinds), max_size=3)),
                    max_size=3,
                )
            )
        )
    ]
    jobs = [
        queued(key, replicas, priority=priority, cpus=cpus, gb=gb, gpus=gpus, kind="A")
        for key, (replicas, priority, cpus, gb, gpus) in enumerate(
            data.draw(
                st.lists(
                    st.tuples(
                        st.integers(1, 8), st.integers(0, 3), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2)
                    ),
                    max_size=6,
                )
            )
        )
    ]
    result = plan(jobs, agents, NOW)
    assert sorted([*placed(result), *result.waiting]) == sorted(job.key for job in jobs)
    assert sorted(w.position for w in result.waiting.values()) == list(range(1, len(result.waiting) + 1))
    for host in agents:
        mine = [p for p in result.placements if p.agent_id == host.agent_id]
        cpus = Counter(cpu for p in mine for cpu in {c for a in p.assignments for c in a.cpus})
        gpus = Counter(gpu for p in mine for a in p.assignments for gpu in a.gpus)
        assert all(count == 1 for count in (cpus + gpus).values())
        assert set(cpus) <= set(host.capacity.cpus)
        assert sum(a.memory_bytes for p in mine for a in p.assignments) <= host.capacity.memory_bytes
        assert all(a.cpus for p in mine for a in p.assignments)
    by_key = {job.key: job for job in jobs}
    for placement in result.placements:
        assert [a.task for a in placement.assignments] == [r.task.name for r in by_key[placement.key].gang]
        assert mode == "fit" or not placement.scaled
    if mode == "fit" and agents:
        assert all(waiting.kind != "never" for waiting in result.waiting.values())
