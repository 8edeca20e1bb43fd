"""The plan of the queue as jobs come: continued where that is the same as to plan everything anew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_server.control import queue_plan
from trainyard_server.control.queue_plan import QueuePlan
from trainyard_server.control.workload import QueueChanges
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.scheduler import Waiting, plan
from trainyard_server.domain.snapshots import JobSnapshot
from unit.server.domain.scheduling.queue_support import NOW, agent, held, queued

LIMITS = Quotas(projects={"q": {"vcpus": 3}})
AGENTS = (agent(cpus=4, gangs=(held(0, 1),)), agent(name="other", cpus=6, gangs=(held(0, 1, 2, 3),)))
ARRIVALS = st.lists(st.tuples(st.integers(1, 6), st.sampled_from("pq"), st.sampled_from((0, 0, 0, 1))), max_size=8)


def of(number: int, cpus: int, project: str, priority: int) -> JobSnapshot:
    return queued(number, cpus=cpus, project=project, priority=priority, age=100 - number)


@given(ARRIVALS)
def test_plan_that_goes_on_job_by_job_is_the_plan_of_them_all(arrivals: list[tuple[int, str, int]]) -> None:
    planning, queue, waiting = QueuePlan(), dict[int, JobSnapshot](), dict[int, Waiting]()
    changes = QueueChanges({}, other=True)
    for number, (cpus, project, priority) in enumerate(arrivals, start=1):
        job = queue[number] = of(number, cpus, project, priority)
        changes.added[number] = job
        result = planning.update(queue.values(), AGENTS, changes, NOW, LIMITS)
        assert result is not None
        whole = plan(queue.values(), AGENTS, NOW, LIMITS)
        waiting.update(result.waiting)
        assert result.placements == whole.placements
        for placement in result.placements:
            del queue[placement.key]
        assert all(waiting[key] == why for key, why in whole.waiting.items())
        changes = QueueChanges({}, other=bool(result.placements))
        if not result.placements:
            assert planning.update(queue.values(), AGENTS, changes, NOW, LIMITS) is None


MACHINES = st.lists(st.tuples(st.sampled_from(("strict", "fit")), st.integers(1, 6), st.integers(0, 6)), max_size=4)


@given(ARRIVALS, MACHINES)
def test_plan_that_ends_where_nothing_fits_starts_the_same_jobs(
    arrivals: list[tuple[int, str, int]], machines: list[tuple[str, int, int]]
) -> None:
    agents = [
        agent(name=f"a{number}", cpus=cpus, gangs=(held(*range(min(cpus, used))),) if used else (), mode=mode)
        for number, (mode, cpus, used) in enumerate(machines)
    ]
    queue = [of(number, *arrival) for number, arrival in enumerate(arrivals, start=1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_plan, "_LONG", 0)
        planning = QueuePlan()
        short = planning.update(queue, agents, QueueChanges({}, other=True), NOW, LIMITS, explain=False)
        explained = planning.update(queue, agents, QueueChanges({}, other=False), NOW, LIMITS)
    whole = plan(queue, agents, NOW, LIMITS)
    if short is None or explained is None:
        assert not queue or (short is not None and short.waiting == whole.waiting)
    else:
        assert short.placements == whole.placements
        assert explained == whole
